"""The interface of a simulated robot: a differentiable pytree with reset, step and measure."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray


class AbstractPlant(eqx.Module):
    """A simulated robot, written for one sample: use `jax.vmap` for a batch.

    What can change between episodes without recompiling (payload, noise level, oil temperature) is an array field;
    what cannot is a static field. `reset`, `step` and `measure` are pure, and differentiable with respect to the
    state and the command. `check_plant` holds every implementation to this.
    """

    @property
    @abstractmethod
    def period_s(self) -> float:
        """The control period in seconds: one `step` advances the plant by this much."""

    @property
    @abstractmethod
    def num_commands(self) -> int:
        """How many command channels `step` takes. Commands lie in [-1, 1] unless the task says otherwise."""

    @property
    @abstractmethod
    def num_measured(self) -> int:
        """The length of what `measure` returns."""

    @abstractmethod
    def reset(self, position: Float[Array, " positions"]) -> Any:
        """The plant at rest, in equilibrium, with this configuration and neutral commands for a long time."""

    @abstractmethod
    def step(self, state: Any, command: Float[Array, " commands"], *, key: PRNGKeyArray) -> Any:
        """One control period later, with `command` held. `key` feeds process noise and drift, if there are any."""

    @abstractmethod
    def measure(self, state: Any, *, key: PRNGKeyArray) -> Float[Array, " measured"]:
        """What the sensors say. `key` feeds sensor noise; without noise the result does not depend on it."""

    def truth(self, state: Any) -> Float[Array, " measured"]:
        """The measurement of exact sensors: errors are counted on it. Most plants measure exactly by themselves."""
        return self.measure(state, key=jax.random.key(0))
