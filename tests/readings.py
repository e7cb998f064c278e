"""A machine for tests of what the loop makes of given measurements."""

import numpy as np


class Readings:
    """A machine that measures what it is told to, whatever is commanded."""

    def __init__(self, measured: np.ndarray) -> None:
        self.left = list(measured)

    def read(self) -> np.ndarray:
        return self.left.pop(0)

    def write(self, command: np.ndarray) -> None:
        """Nothing moves."""

    def neutral(self) -> None:
        """Nothing moves."""
