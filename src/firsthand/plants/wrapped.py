"""A plant around a plant."""

from typing import Any

from .base import AbstractPlant


class AbstractWrapper(AbstractPlant):
    """A plant that another one is inside of, with its control period and channels."""

    plant: Any
    """The wrapped plant."""

    @property
    def period_s(self) -> float:
        """That of the wrapped plant."""
        return self.plant.period_s

    @property
    def num_commands(self) -> int:
        """That of the wrapped plant."""
        return self.plant.num_commands

    @property
    def num_measured(self) -> int:
        """That of the wrapped plant."""
        return self.plant.num_measured
