"""The closed loop that the gradient unrolls: the matrices A + BK along a trajectory, and how their products grow.

The gradient contains (I − (A + BK))⁻¹, whose blocks are products (A + BK)[k−1] … (A + BK)[j]. While those stay small
the model's errors are not amplified; the paper asks for a stable loop for this reason.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from firsthand.optim.rollout import DynamicsFunction, PolicyFunction, Rollout
from firsthand_onboard import ControlSpec


def state_scales(spec: ControlSpec) -> Float[np.ndarray, " state"]:
    """The unit of each entry of the state vector: measurements in their scales, commands in half ranges."""
    layout, limits = spec.layout, spec.limits
    half = (np.asarray(limits.command_high) - np.asarray(limits.command_low)) / 2
    measured = np.tile(np.asarray(spec.scales.measured_scale), 1 + layout.measurement_memory)
    return np.concatenate([measured, np.tile(half, layout.command_memory)])


def closed_loop_matrices(
    policy: PolicyFunction, dynamics: DynamicsFunction, rollout: Rollout
) -> Float[Array, "steps state state"]:
    """A[k] + B[k] K[k] at every step of one trajectory; it maps a change of x_k to one of x_{k+1}."""

    def following(state, command, preview, free):
        own = policy(state, preview)
        own = jnp.where(free, own, jax.lax.stop_gradient(own))
        return dynamics(state, command + own - jax.lax.stop_gradient(own))

    each = jax.vmap(jax.jacfwd(following))
    return each(rollout.states[:-1], rollout.commands, rollout.previews, rollout.free)


def spectral_radii(matrices: Float[np.ndarray, "*steps state state"]) -> Float[np.ndarray, "*steps"]:
    """The largest absolute eigenvalue of each matrix: above one, a loop that stayed like this would be unstable."""
    return np.abs(np.linalg.eigvals(matrices)).max(axis=-1)


def product_growth(
    matrices: Float[np.ndarray, "steps state state"], scales: Float[np.ndarray, " state"] | None = None
) -> Float[np.ndarray, " steps"]:
    """The largest singular value of M[k−1] … M[0] for k = 1 … H, with states counted in units of `scales`."""
    size = matrices.shape[-1]
    unit = np.ones(size) if scales is None else np.asarray(scales)
    product, growth = np.eye(size), []
    for matrix in np.asarray(matrices, np.float64) * unit / unit[:, None]:
        product = matrix @ product
        growth.append(np.linalg.norm(product, 2) if np.isfinite(product).all() else np.inf)
    return np.asarray(growth)


TRANSIENT_SHARE = 0.2
"""First share of a trajectory that says nothing about growth: a product of stable matrices may swell at first."""


def growth_per_step(growth: Float[np.ndarray, " steps"]) -> float:
    """The factor per step after the transient, (‖M[H−1] … M[0]‖ / ‖M[k−1] … M[0]‖)^(1/(H−k)).

    Below one, disturbances die out.
    Over the whole trajectory a non-normal loop's transient would count: a factor of 134 there is 1.04 per step over
    125 steps, although the loop is stable.
    """
    first = int(TRANSIENT_SHARE * len(growth))
    return float((growth[-1] / growth[first]) ** (1.0 / max(len(growth) - 1 - first, 1)))
