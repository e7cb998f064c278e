"""Where the realistic excavator can lift a payload."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from firsthand.plants.excavator.effects import EffectSizes
from firsthand.plants.excavator.linkage import moment_arms
from firsthand.plants.excavator.loads import gravity_torque
from firsthand.plants.excavator.parameters import BAR, REALISTIC_MODEL, by_direction, stroke_factors

HEAVY_PAYLOADS = {"empty": 0.0, "small": 400.0, "medium": 1000.0, "large": 1500.0}
"""kg in the gripper of the realistic machine (S: stones of 760 kg on average; E)."""
SPARE = 0.25
"""Share of the asked flow that must still come through while lifting."""


@dataclass(frozen=True)
class CanLift:
    """Tells in which poses every joint can lift the arm and this payload, slowly, against friction."""

    payload_kg: float

    def __call__(self, poses: Float[np.ndarray, "*batch 4"]) -> Bool[np.ndarray, "*batch"]:
        """Whether the pressure needed stays below the relief valve's."""
        shape = np.shape(poses)[:-1]
        needed = _lifting_pressures(jnp.asarray(np.reshape(poses, (-1, 4)), jnp.float32), jnp.float32(self.payload_kg))
        return np.asarray(needed <= REALISTIC_MODEL.relief / BAR).reshape(shape)


@jax.jit
def _lifting_pressures(poses: Float[Array, "poses 4"], payload: Float[Array, ""]) -> Float[Array, " poses"]:
    """The highest supply pressure that a joint needs to move against its load, bar."""
    p, sizes = REALISTIC_MODEL, EffectSizes()
    area_plus, area_minus, sign_plus, _ = stroke_factors(p)

    def highest(q):
        pull = gravity_torque(q, payload) / moment_arms(q) * sign_plus
        plus = pull > 0  # the command that works against the load
        load = jnp.abs(pull) / by_direction(plus, area_plus, area_minus)
        threshold = by_direction(plus, p.threshold_plus, p.threshold_minus)
        ramp = by_direction(plus, p.ramp_plus, p.ramp_minus)
        return jnp.max((1 + sizes.friction * sizes.stribeck) * load + threshold + SPARE * ramp) / BAR

    return jax.vmap(highest)(poses)
