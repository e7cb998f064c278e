"""The cost of one step: the goal's own, change of command, soft joint limits."""

import dataclasses
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from firsthand_onboard import ControlSpec
from firsthand_onboard.kinematics import tracked_output
from firsthand_onboard.spec import SelectedOutput

from ..errors import UserError
from .goals import AbstractGoal, StepState, Track, Weights, check_weights

TRIALS = 32
"""Random states at which a goal of the user's own is tried before anything moves."""
LAST_SHARE = 0.25
"""In this last part of the soft margin, next to the limit, the joint-limit term acts wherever the reference leads."""


@dataclass(frozen=True)
class StepCost:
    """c(x, u, r) = g(x, u, r) + w_Δ |u − u₋₁|² + w_lim Σ_j (how far joint j is inside its soft margin)⁴.

    g is the goal's: |p(x) − r|²/L² where the tracked output p follows the reference (`tracking_cost`). The last two
    terms are our deviation from the paper: without the first of them the policy chatters and the model's error grows on
    the chatter; without the second a redundant arm drifts into its stops.

    The joint-limit term is for what the goal leaves open. Where a position is itself tracked, and its reference leads
    into the margin, the term begins at the reference (in the last quarter of the margin it acts in any case): otherwise
    it would hold the joint back from where it shall be, and following exactly would not be the best.
    """

    spec: ControlSpec
    """The robot's control specification."""
    goal: AbstractGoal
    """The robot's goal."""
    change_weight: Weights = 0.005
    """w_Δ: weight of the squared change of command (commands scaled to [-1, 1]); one per command where they differ."""
    limit_weight: Weights = 0.1
    """w_lim: weight of the joint-limit term; one per position where they differ."""
    limit_power: int = 4
    """The power of the joint-limit term: the higher, the later it acts, and the less it takes from tracking."""
    limit_margin: float = 0.2
    """The soft margin, as a share of each joint's range: the term is zero inside and w_lim at the limit itself."""

    def __post_init__(self) -> None:
        if not isinstance(self.goal, AbstractGoal):
            raise UserError(f"goal is {self.goal!r}, but must be one of firsthand.goals, Residuals(f) for example.")
        check_weights("change_weight", self.change_weight, self.spec.layout.num_commands, "command")
        check_weights("limit_weight", self.limit_weight, len(self.spec.layout.position), "position")
        if not (isinstance(self.limit_power, int) and self.limit_power >= 2):
            raise UserError(f"limit_power is {self.limit_power}, but must be a whole number of at least 2.")
        if not 0 < self.limit_margin < 0.5:
            raise UserError(f"limit_margin is {self.limit_margin}, but must lie between 0 and 0.5.")
        self.goal.check(self.spec)

    @property
    def is_least_squares(self) -> bool:
        """Whether the cost is a sum of squares, as refinement needs it."""
        return self.goal.is_least_squares

    def __call__(
        self,
        state: Float[Array, " state"],
        command: Float[Array, " commands"],
        reference: Float[Array, " outputs"],
    ) -> Float[Array, ""]:
        """The cost of one step."""
        x = StepState(self.spec, state)
        change, inside = self._penalties(x, command, reference)
        return (
            self.goal.cost(x, command, reference)
            + _weighted_sum(self.change_weight, change**2)
            + _weighted_sum(self.limit_weight, inside**self.limit_power)
        )

    def residuals(
        self,
        state: Float[Array, " state"],
        command: Float[Array, " commands"],
        reference: Float[Array, " outputs"],
    ) -> Float[Array, " residuals"]:
        """The residuals, for Gauss–Newton steps; the cost is the sum of their squares. Not for a plain cost."""
        x = StepState(self.spec, state)
        change, inside = self._penalties(x, command, reference)
        return jnp.concat(
            [
                self.goal.residuals(x, command, reference),
                _root(self.change_weight) * change,
                _root(self.limit_weight) * inside ** (self.limit_power / 2),
            ]
        )

    def with_steeper_limits(self, power: int) -> "StepCost":
        """The same cost with a joint-limit term of at least this power: smaller in the margin, equal at the limit."""
        return dataclasses.replace(self, limit_power=max(power, self.limit_power))

    def _penalties(self, x: StepState, command: Array, reference: Array) -> tuple[Array, Array]:
        """Change of command, in half ranges, and how far each joint is inside its margin."""
        limits = self.spec.limits
        half = (jnp.asarray(limits.command_high) - jnp.asarray(limits.command_low)) / 2
        change = (command - x.last_command) / half
        low, high = jnp.asarray(limits.position_low), jnp.asarray(limits.position_high)
        position = x.position
        margin = self.limit_margin * (high - low)
        upper, lower = high - margin, low + margin
        joints, outputs = self._followed()
        if joints:
            wanted, last = reference[jnp.asarray(outputs)], LAST_SHARE * margin
            at = jnp.asarray(joints)
            upper = upper.at[at].set(jnp.clip(wanted, upper[at], (high - last)[at]))
            lower = lower.at[at].set(jnp.clip(wanted, (low + last)[at], lower[at]))
        inside = jax.nn.relu(position - upper) + jax.nn.relu(lower - position)
        return change, inside / margin

    def _followed(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which positions are tracked themselves, and as which output each."""
        chosen = self.spec.kinematics
        if not (self.goal.tracks and isinstance(chosen, SelectedOutput)):
            return (), ()
        pairs = [(j, chosen.indices.index(e)) for j, e in enumerate(self.spec.layout.position) if e in chosen.indices]
        joints, outputs = zip(*pairs, strict=True) if pairs else ((), ())
        return joints, outputs


def tracking_cost(
    spec: ControlSpec,
    *,
    length_scale: Weights,
    change_weight: Weights = 0.005,
    limit_weight: Weights = 0.1,
    limit_power: int = 4,
    limit_margin: float = 0.2,
) -> StepCost:
    """The cost of a robot whose tracked output follows references; `length_scale` is L, see `goals.Track`."""
    check_weights("length_scale", length_scale, spec.num_outputs, "tracked output", positive=True)
    return StepCost(spec, Track(length_scale), change_weight, limit_weight, limit_power, limit_margin)


def _weighted_sum(weight: Weights, values: Array) -> Array:
    if isinstance(weight, tuple):
        return jnp.sum(jnp.asarray(weight) * values)
    return weight * jnp.sum(values)


def _root(weight: Weights) -> Array | float:
    return jnp.sqrt(jnp.asarray(weight)) if isinstance(weight, tuple) else math.sqrt(weight)


def try_cost(cost: StepCost, references: np.ndarray) -> None:
    """Try a goal of the user's own at random states, before anything moves: `UserError` says what is wrong with it.

    Its value and its derivatives must be finite, no plain cost below zero, and something must depend on x or u.

    Args:
        cost: the cost with the goal; one that is ready-made is not tried.
        references: points of the tracked output `(points, outputs)` that the robot may be asked for.
    """
    if cost.goal.is_ready_made:
        return
    spec, rng = cost.spec, np.random.default_rng(0)
    name = "residuals" if cost.is_least_squares else "cost"
    measured = _plausible_measurements(spec, rng, TRIALS * (1 + spec.layout.measurement_memory))
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    commands = rng.uniform(low, high, (TRIALS, 1 + spec.layout.command_memory, len(low)))
    states = np.concatenate([measured.reshape(TRIALS, -1), commands[:, 1:].reshape(TRIALS, -1)], axis=1)
    points = np.asarray(references)[rng.integers(len(references), size=TRIALS)]
    states[0, list(spec.layout.velocity)] = 0.0  # at rest and without an error: where norms have no derivative
    points[0] = tracked_output(spec, states[0, : spec.layout.num_measured])
    given = tuple(jnp.asarray(array, jnp.float32) for array in (states, commands[:, 0], points))

    def goal(state: Array, command: Array, reference: Array) -> Array:
        return cost.goal.cost(StepState(spec, state), command, reference)

    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(goal, argnums=(0, 1))))(*given)
    values, slopes = np.asarray(values), np.concatenate([np.asarray(slope) for slope in slopes], axis=1)
    for i in range(TRIALS):
        where = f"at {_show(spec, states[i], commands[i, 0], points[i])}"
        if not np.isfinite(values[i]):
            raise UserError(f"{name} gives {values[i]} {where}, but must be finite wherever the robot may be.")
        if not np.isfinite(slopes[i]).all():
            raise UserError(
                f"{name} has no finite derivative {where}, although its value is {values[i]:.4g}; a square root or a "
                "norm at zero is the usual reason."
            )
        if values[i] < 0:
            raise UserError(
                f"{name} gives {values[i]:.4g} {where}, but must be zero or more: costs are compared by their ratio. "
                "Add a constant."
            )
    if not slopes.any():
        raise UserError(
            f"{name} has derivatives of zero at {TRIALS} random states: it depends on neither x nor u, or through "
            "rounding or comparisons alone. There is nothing to learn from."
        )


def _plausible_measurements(spec: ControlSpec, rng: np.random.Generator, count: int) -> np.ndarray:
    """Random measurements `(count, measured)`: positions inside their limits, the rest by its scale."""
    scales, limits = spec.scales, spec.limits
    found = np.asarray(scales.measured_center) + np.asarray(scales.measured_scale) * rng.uniform(
        -1.0, 1.0, (count, spec.layout.num_measured)
    )
    low, high = np.asarray(limits.position_low), np.asarray(limits.position_high)
    found[:, list(spec.layout.position)] = rng.uniform(low, high, (count, len(low)))
    return found


def _show(spec: ControlSpec, state: np.ndarray, command: np.ndarray, point: np.ndarray) -> str:
    measured = zip(spec.layout.measured, state, strict=False)
    x = ", ".join(f"{name} {value:.3g}" for name, value in measured)
    u, r = (", ".join(f"{value:.3g}" for value in values) for values in (command, point))
    return f"x = ({x}), u = ({u}), r = ({r})"
