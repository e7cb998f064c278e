"""The cost of one step: tracking, change of command, soft joint limits."""

import dataclasses
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import last_command, measured_part
from firsthand_onboard.kinematics import tracked_output

from ..errors import UserError


@dataclass(frozen=True)
class TrackingCost:
    """c(x, u, r) = |p(x) − r|²/L² + w_Δ |u − u₋₁|² + w_lim Σ_j (how far joint j is inside its soft margin)⁴.

    p is the tracked output and L the task's length scale. The last two terms are our deviation from the paper: without
    the first of them the policy chatters and the model's error grows on the chatter; without the second a redundant
    arm drifts into its stops.
    """

    spec: ControlSpec
    """What the state holds."""
    length_scale: float
    """L, in the unit of the tracked output: an error of this size costs 1."""
    change_weight: float = 0.005
    """w_Δ: weight of the squared change of command (commands scaled to [-1, 1])."""
    limit_weight: float = 0.1
    """w_lim: weight of the joint-limit term."""
    limit_power: int = 4
    """The power of the joint-limit term: the higher, the later it acts, and the less it takes from tracking."""
    limit_margin: float = 0.2
    """The soft margin, as a share of each joint's range: the term is zero inside and w_lim at the limit itself."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.length_scale) and self.length_scale > 0):
            raise UserError(f"length_scale is {self.length_scale}, but must be a positive number.")
        for name in ("change_weight", "limit_weight"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"{name} is {value}, but must be zero or a positive number.")
        if not (isinstance(self.limit_power, int) and self.limit_power >= 2):
            raise UserError(f"limit_power is {self.limit_power}, but must be a whole number of at least 2.")
        if not 0 < self.limit_margin < 0.5:
            raise UserError(f"limit_margin is {self.limit_margin}, but must lie between 0 and 0.5.")

    def __call__(
        self,
        state: Float[Array, " state"],
        command: Float[Array, " commands"],
        reference: Float[Array, " outputs"],
    ) -> Float[Array, ""]:
        """The cost of one step."""
        error, change, inside = self._parts(state, command, reference)
        return (
            jnp.sum(error**2)
            + self.change_weight * jnp.sum(change**2)
            + self.limit_weight * jnp.sum(inside**self.limit_power)
        )

    def residuals(
        self,
        state: Float[Array, " state"],
        command: Float[Array, " commands"],
        reference: Float[Array, " outputs"],
    ) -> Float[Array, " residuals"]:
        """What the cost is the sum of squares of, for Gauss–Newton steps."""
        error, change, inside = self._parts(state, command, reference)
        return jnp.concat(
            [
                error,
                math.sqrt(self.change_weight) * change,
                math.sqrt(self.limit_weight) * inside ** (self.limit_power / 2),
            ]
        )

    def with_steeper_limits(self, power: int) -> "TrackingCost":
        """The same cost with a joint-limit term of at least this power: smaller in the margin, equal at the limit."""
        return dataclasses.replace(self, limit_power=max(power, self.limit_power))

    def _parts(self, state: Array, command: Array, reference: Array) -> tuple[Array, Array, Array]:
        """Tracking error, change of command, and how far each joint is inside its margin; all in their units."""
        spec = self.spec
        measured = measured_part(spec.layout, state)
        error = (tracked_output(spec, measured) - reference) / self.length_scale
        half = (jnp.asarray(spec.limits.command_high) - jnp.asarray(spec.limits.command_low)) / 2
        change = (command - last_command(spec.layout, state)) / half
        low, high = jnp.asarray(spec.limits.position_low), jnp.asarray(spec.limits.position_high)
        position = measured[jnp.asarray(spec.layout.position)]
        margin = self.limit_margin * (high - low)
        inside = jax.nn.relu(position - (high - margin)) + jax.nn.relu((low + margin) - position)
        return error, change, inside / margin
