"""Networks as a plant: what a robot's log shows about how it moves (after Egli & Hutter).

The state holds coordinates q (what is measured, apart from velocities), their rates w over the last control periods,
past commands, and a disturbance d. One period with the command u,

    w⁺ = w + s (f(w, …, u, …, q) + d),   q⁺ = q + T w⁺,   d⁺ = ρ d,

with one small network f per coordinate and a linear part beside it, which extrapolates better. f is the mean of an
ensemble whose members disagree where the log says nothing. A velocity sensor shows a weighted sum of the last rates, so
it may be late.

The state is estimated from a stretch of the log by an observer in innovation form: rates and disturbance are corrected
by what positions and velocities show beyond the prediction. d carries on what the log's last second shows and the
networks do not know, such as a load.
"""

import math
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from firsthand_onboard import ControlSpec
from firsthand_onboard.arrays import namespace
from firsthand_onboard.features import command_feature

from ..base import AbstractPlant

Beyond = Literal["ignore", "slow", "stop"]
"""The plant's behaviour where its networks disagree: no change, slow motion, or a stop."""
CLIP = 8.0
"""Innovations are limited to about this many change scales."""


class LearnedState(eqx.Module):
    """Where the robot is, how it has been moving, and what was commanded."""

    coordinates: Float[Array, " coordinates"]
    """q_k."""
    rates: Float[Array, "history coordinates"]
    """w_k, w_{k-1}, …, the latest first; w_k = (q_k − q_{k-1})/T."""
    commands: Float[Array, "past commands"]
    """u_{k-1}, u_{k-2}, …, the latest first, each scaled to [-1, 1]."""
    disturbance: Float[Array, " coordinates"]
    """d_k, in change scales."""
    doubt: Float[Array, ""]
    """The ensemble's disagreement in the last step, over what is usual in the log."""


class Networks(eqx.Module):
    """One small tanh network per member and coordinate, and a linear part."""

    layers: tuple[tuple[Float[Array, "*batch _out _in"], Float[Array, "*batch _out"]], ...]
    """Weights and biases."""
    linear: Float[Array, "*batch inputs"]
    """The linear part."""

    def __call__(self, inputs: Float[Array, " inputs"]) -> Float[Array, ""]:
        """The output of one member for one coordinate."""
        values = inputs
        for weight, bias in self.layers[:-1]:
            values = jnp.tanh(weight @ values + bias)
        weight, bias = self.layers[-1]
        return (weight @ values + bias)[0] + self.linear @ inputs


class Observation(eqx.Module):
    """How measurements correct the state, and what a velocity sensor shows. All per coordinate."""

    position_gain: Float[Array, "history coordinates"]
    """From the innovation of a position (as a rate) to the rates."""
    velocity_gain: Float[Array, "history coordinates"]
    """From the innovation of a velocity to the rates."""
    disturbance_gain: Float[Array, "2 coordinates"]
    """From both to the disturbance."""
    memory: Float[Array, " coordinates"]
    """ρ = sigmoid of this."""
    taps: Float[Array, "history coordinates"]
    """Weights of the last rates in a measured velocity."""


class LearnedPlant(AbstractPlant):
    """A robot as its log shows it."""

    networks: Networks
    """f: fields have the shape (members, coordinates, …)."""
    observation: Observation
    """The observer."""
    center: Float[Array, " coordinates"]
    """Mean of the coordinates in the log."""
    scale: Float[Array, " coordinates"]
    """Their standard deviation."""
    rate_scale: Float[Array, " coordinates"]
    """Standard deviation of the rates."""
    change_scale: Float[Array, " coordinates"]
    """s: size of the rates' changes."""
    usual_doubt: Float[Array, ""]
    """Disagreement that 99 % of the log stays below."""
    spec: ControlSpec = eqx.field(static=True)
    """Measurements and commands."""
    command_history: int = eqx.field(static=True)
    """How many past commands the networks see, besides the one that is being given."""
    free: tuple[int, ...] = eqx.field(static=True, default=())
    """Entries of the measurement whose value makes no difference to the motion: the networks do not see them."""
    observed_steps: int = eqx.field(static=True, default=12)
    """Steps of a log through which the observer runs before the plant is left to itself."""
    beyond: Beyond = eqx.field(static=True, default="ignore")
    """The behaviour where the ensemble disagrees."""
    dead_band: Float[Array, "2 commands"] | None = None
    """(d₋, d₊) of every command: the networks then also see valve openings. None for plants fitted without."""

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

    @property
    def rate_history(self) -> int:
        """How many rates the state holds."""
        return self.observation.taps.shape[0]

    @property
    def history(self) -> int:
        """Rows before the present one that `start` takes; earlier commands are held back to the oldest."""
        return self.observed_steps + self.rate_history

    def reset(self, position: Float[Array, " positions"]) -> LearnedState:
        """Standing still at `position`, with neutral commands for as long as the networks look back."""
        entries = coordinate_entries(self.spec)
        where = jnp.asarray([entries.index(entry) for entry in self.spec.layout.position])
        coordinates = self.center.at[where].set(position)
        rates = jnp.zeros((self.rate_history, len(entries)), coordinates.dtype)
        commands = jnp.zeros((self.command_history, self.num_commands), coordinates.dtype)
        return LearnedState(coordinates, rates, commands, jnp.zeros_like(coordinates), jnp.zeros((), rates.dtype))

    def step(self, state: LearnedState, command: Float[Array, " commands"], *, key: PRNGKeyArray) -> LearnedState:
        """One control period with `command`, clipped to its range, held."""
        del key
        low, high = (jnp.asarray(v, state.rates.dtype) for v in _command_range(self.spec))
        scaled = command_feature(self.spec, jnp.clip(command, low, high))
        commands = jnp.concat([scaled[None], state.commands])
        each = self.member_changes(state, commands)
        doubt = jnp.sqrt(jnp.mean(jnp.var(each, axis=0)) + 1e-12) / self.usual_doubt
        rate = state.rates[0] + self.change_scale * (each.mean(axis=0) + state.disturbance)
        if self.beyond == "slow":
            rate = rate / (1.0 + jax.nn.relu(doubt - 1.0))
        elif self.beyond == "stop":
            rate = jnp.where(doubt > STOP_AT, 0.0, rate)
        return LearnedState(
            state.coordinates + self.period_s * rate,
            jnp.concat([rate[None], state.rates[:-1]]),
            commands[: self.command_history],
            jax.nn.sigmoid(self.observation.memory) * state.disturbance,
            doubt,
        )

    def measure(self, state: LearnedState, *, key: PRNGKeyArray) -> Float[Array, " measured"]:
        """The measurement, without noise."""
        del key
        entries = coordinate_entries(self.spec)
        measured = jnp.zeros(self.num_measured, state.coordinates.dtype).at[jnp.asarray(entries)].set(state.coordinates)
        if not self.spec.layout.velocity:
            return measured
        return measured.at[jnp.asarray(self.spec.layout.velocity)].set(self._shown_velocity(state))

    def correct(self, state: LearnedState, measured: Float[Array, " measured"]) -> LearnedState:
        """The predicted state after a look at the sensors."""
        gains, entries = self.observation, coordinate_entries(self.spec)
        seen = measured[jnp.asarray(entries)]
        innovation = _soften((seen - state.coordinates) / self.period_s / self.change_scale)
        rates = gains.position_gain * innovation
        disturbance = gains.disturbance_gain[0] * innovation
        if self.spec.layout.velocity:
            where = jnp.asarray([entries.index(entry) for entry in self.spec.layout.position])
            shown = measured[jnp.asarray(self.spec.layout.velocity)] - self._shown_velocity(state)
            late = jnp.zeros_like(innovation).at[where].set(_soften(shown / self.change_scale[where]))
            rates = rates + gains.velocity_gain * late
            disturbance = disturbance + gains.disturbance_gain[1] * late
        return LearnedState(
            seen,
            state.rates + self.change_scale * rates,
            state.commands,
            state.disturbance + disturbance,
            state.doubt,
        )

    def start(self, measured: Float[Array, "rows measured"], commands: Float[Array, "steps commands"]) -> LearnedState:
        """The state at the last row of a stretch with one command fewer than rows; the oldest first.

        At least `history` steps; commands before the first one are taken to have been like it.
        """
        first = len(commands) - self.observed_steps
        coordinates = measured[:, jnp.asarray(coordinate_entries(self.spec))]
        change = (coordinates[1:] - coordinates[:-1]) / self.period_s
        earlier = jnp.asarray([max(first - 1 - i, 0) for i in range(self.command_history)])
        zero = jnp.zeros_like(coordinates[0])
        state = LearnedState(
            coordinates[first],
            change[first - self.rate_history : first][::-1],
            jax.vmap(lambda u: command_feature(self.spec, u))(commands[earlier]),
            zero,
            zero[0],
        )
        return self.observe(state, measured[first + 1 :], commands[first:])[0]

    def observe(
        self,
        state: LearnedState,
        measured: Float[Array, "steps measured"],
        commands: Float[Array, "steps commands"],
    ) -> tuple[LearnedState, Float[Array, " steps"]]:
        """The state after these steps of a log, corrected by each measurement; and the doubt in each step."""
        key = jax.random.key(0)

        def advance(state, row):
            command, seen = row
            state = self.correct(self.step(state, command, key=key), seen)
            return state, state.doubt

        return jax.lax.scan(advance, state, (commands, measured))

    def member_changes(
        self, state: LearnedState, commands: Float[Array, "now_and_past commands"]
    ) -> Float[Array, "members coordinates"]:
        """The prediction of each member; `commands` begins with the present one."""
        inputs = self.inputs(state, commands)
        return jax.vmap(lambda member: jax.vmap(lambda network, x: network(x))(member, inputs))(self.networks)

    def inputs(
        self, state: LearnedState, commands: Float[Array, "now_and_past commands"]
    ) -> Float[Array, "coordinates inputs"]:
        """What the network of each coordinate sees.

        Its own rates, and its own commands where there is one per coordinate. Of the others the present rate and mean
        commands: a closer look at them only learns by heart which motions occurred together in the log. With dead bands
        the openings of the valves beside the commands, and how far all are open: they share one pump.
        """
        entries = coordinate_entries(self.spec)
        pose = jnp.asarray([i for i, entry in enumerate(entries) if entry not in self.free], int)
        changes = (state.rates[:-1] - state.rates[1:]) / self.change_scale
        rates = state.rates[0] / self.rate_scale
        blocks = [commands[a:b].mean(axis=0) for a, b in command_blocks(len(commands))]
        shared = jnp.concat([((state.coordinates - self.center) / self.scale)[pose], rates, *blocks])
        own = [rates[None], changes, *([commands] if is_paired(self.spec) else [])]
        if not is_paired(self.spec):
            shared = jnp.concat([shared, commands.reshape(-1)])
        elif self.dead_band is not None:
            low, high = jax.lax.stop_gradient(self.dead_band)
            open_ = valve_opening(commands, low, high)
            parts = [open_[a:b] for a, b in command_blocks(len(commands))]
            shared = jnp.concat([shared, *(p.mean(axis=0) for p in parts), *(jnp.abs(p).mean(axis=0) for p in parts)])
            wide = (jnp.minimum(edge + KNEE, WIDEST) for edge in (low, high))
            own += [open_, valve_opening(commands, *wide)]
        return jnp.concat([jnp.concat(own).T, jnp.tile(shared, (len(entries), 1))], axis=1)

    def _shown_velocity(self, state: LearnedState) -> Float[Array, " positions"]:
        entries = coordinate_entries(self.spec)
        where = jnp.asarray([entries.index(entry) for entry in self.spec.layout.position])
        return jnp.sum(self.observation.taps * state.rates, axis=0)[where]


KNEE, WIDEST = 0.15, 0.9
"""Where the second line begins with which a valve's gain may grow: this far beyond its dead band, at most there."""
STOP_AT = 3.0
"""A plant that stops does so where the disagreement is this many times what is usual."""


def coordinate_entries(spec: ControlSpec) -> tuple[int, ...]:
    """Entries of the measurement that are not velocities."""
    return tuple(i for i in range(spec.layout.num_measured) if i not in spec.layout.velocity)


def is_paired(spec: ControlSpec) -> bool:
    """Whether there is one command per coordinate, in the same order."""
    return spec.layout.num_commands == len(coordinate_entries(spec))


def command_blocks(count: int) -> list[tuple[int, int]]:
    """The parts of a command history over which other joints' commands are averaged, `(begin, end)`."""
    third = max(math.ceil(count / 3), 1)
    return [(0, min(third, count))] + ([(third, min(2 * third, count))] if count > third else [])


def valve_opening(command: Any, low: Any, high: Any) -> Any:
    """How far a valve is open beyond its dead band (d₋, d₊), ± 1 at full command; the command itself without one."""
    xp = namespace(command)
    return xp.maximum(command - high, 0.0 * command) / (1.0 - high) - xp.maximum(-command - low, 0.0 * command) / (
        1.0 - low
    )


def input_size(
    spec: ControlSpec, command_history: int, rate_history: int, free: tuple[int, ...] = (), *, openings: bool = False
) -> int:
    """The length of a network's input; `openings` are seen where there are dead bands."""
    coordinates, commands = len(coordinate_entries(spec)), spec.layout.num_commands
    own = rate_history + (1 + command_history if is_paired(spec) else 0)
    seen = sum(entry not in free for entry in coordinate_entries(spec))
    shared = seen + coordinates + commands * len(command_blocks(1 + command_history))
    if openings and is_paired(spec):
        own, shared = own + 2 * (1 + command_history), shared + 2 * commands * len(command_blocks(1 + command_history))
    return own + shared + (0 if is_paired(spec) else commands * (1 + command_history))


def _soften(innovation: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return CLIP * jnp.tanh(innovation / CLIP)


def _command_range(spec: ControlSpec) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return spec.limits.command_low, spec.limits.command_high
