"""A network as a plant: what a robot's log shows about how it moves (after Egli & Hutter).

The network sees what is measured now, how the predicted entries changed over the last few control periods, and the last
commands, and predicts how the learned entries change next: the velocities where they are measured, else the positions.
Integration is known and written down.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import command_feature
from firsthand_onboard.policy import network_output

from ...models.networks import Layers, predicted_entries
from ..base import AbstractPlant


class LearnedState(eqx.Module):
    """What is measured, and the history that the network looks at (longer than the robot's registers, if need be)."""

    measured: Float[Array, " measured"]
    """y_k."""
    earlier: Float[Array, "history predicted"]
    """The predicted entries of y_{k-1}, y_{k-2}, …, the latest first."""
    commands: Float[Array, "past commands"]
    """u_{k-1}, u_{k-2}, …, the latest first."""


class LearnedPlant(AbstractPlant):
    """A robot as its log shows it. It knows nothing beyond the log: outside the range seen, motion stops."""

    layers: Layers
    """Weights (out, in) and biases of the network."""
    center: Float[Array, " measured"]
    """Mean of what was measured."""
    scale: Float[Array, " measured"]
    """Its standard deviation."""
    change_scale: Float[Array, " predicted"]
    """What the network's output is multiplied by: the size of the changes in the log."""
    low: Float[Array, " measured"]
    """The least value of each measured quantity that the plant goes to."""
    high: Float[Array, " measured"]
    """The greatest."""
    spec: ControlSpec = eqx.field(static=True)
    """What is measured and commanded."""
    command_history: int = eqx.field(static=True)
    """How many past commands the network sees, besides the one that is being given."""
    measurement_history: int = eqx.field(static=True)
    """How many past measurements the network sees."""

    @property
    def period_s(self) -> float:
        """The control period of the robot that was logged."""
        return self.spec.period_s

    @property
    def num_commands(self) -> int:
        """As the robot that was logged."""
        return self.spec.layout.num_commands

    @property
    def num_measured(self) -> int:
        """As the robot that was logged."""
        return self.spec.layout.num_measured

    def reset(self, position: Float[Array, " positions"]) -> LearnedState:
        """Standing still at `position`, with neutral commands for as long as the network looks back."""
        measured = self.center.at[jnp.asarray(self.spec.layout.position)].set(position)
        if self.spec.layout.velocity:
            measured = measured.at[jnp.asarray(self.spec.layout.velocity)].set(0.0)
        measured = jnp.clip(measured, self.low, self.high)
        low, high = (jnp.asarray(v, measured.dtype) for v in _command_range(self.spec))
        return LearnedState(
            measured,
            jnp.tile(measured[self.predicted], (self.measurement_history, 1)),
            jnp.tile((low + high) / 2, (self.command_history, 1)),
        )

    def step(self, state: LearnedState, command: Float[Array, " commands"], *, key: PRNGKeyArray) -> LearnedState:
        """One control period with `command`, clipped to its range, held."""
        del key
        low, high = (jnp.asarray(v, state.measured.dtype) for v in _command_range(self.spec))
        commands = jnp.concat([jnp.clip(command, low, high)[None], state.commands])
        now = state.measured[self.predicted]
        new = state.measured.at[self.predicted].add(self.change(state, commands))
        layout = self.spec.layout
        if layout.velocity:
            position, velocity = jnp.asarray(layout.position), jnp.asarray(layout.velocity)
            moved = 0.5 * self.period_s * (state.measured[velocity] + new[velocity])
            wanted = state.measured[position] + moved
            inside = (wanted >= self.low[position]) & (wanted <= self.high[position])
            new = new.at[position].set(wanted).at[velocity].multiply(inside)
        return LearnedState(
            jnp.clip(new, self.low, self.high),
            jnp.concat([now[None], state.earlier])[: self.measurement_history],
            commands[: self.command_history],
        )

    def measure(self, state: LearnedState, *, key: PRNGKeyArray) -> Float[Array, " measured"]:
        """What the network predicts, without noise."""
        del key
        return state.measured

    def change(
        self, state: LearnedState, commands: Float[Array, "now_and_past commands"]
    ) -> Float[Array, " predicted"]:
        """The predicted change over one control period; `commands` begins with the one that is being given."""
        now = state.measured[self.predicted]
        features = [
            (state.measured - self.center) / self.scale,
            ((now - state.earlier) / self.change_scale).reshape(-1),
            command_feature(self.spec, commands).reshape(-1),
        ]
        return self.change_scale * network_output(self.layers, jnp.concat(features))

    @property
    def predicted(self) -> Int[Array, " predicted"]:
        """Which entries of the measurement the network predicts."""
        return jnp.asarray(predicted_entries(self.spec))


def input_size(spec: ControlSpec, command_history: int, measurement_history: int) -> int:
    """The length of the network's input."""
    layout = spec.layout
    past = measurement_history * len(predicted_entries(spec))
    return layout.num_measured + past + layout.num_commands * (1 + command_history)


def _command_range(spec: ControlSpec) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return spec.limits.command_low, spec.limits.command_high
