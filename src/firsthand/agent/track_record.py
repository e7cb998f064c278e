"""Recent costs and step lengths, and the last proven policy. Judged steps and roll-back compare with them.

The preconditioned step −η w/(1 + s), with s = ∇ᵀw, is longest where s = 1: for a gradient with a norm of about √ε, not
for the largest gradient. Early gradients are far larger than that and late ones far smaller, so late in a run an
unusual episode gets the longest step of all. `limit_length` limits a step to a multiple of the recent ones.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from ..models import Policy
from ..optim.gradient import trajectory_cost
from ..optim.rollout import CostFunction, Rollout
from .settings import Settings
from .trees import select_tree


class TrackRecord(eqx.Module):
    """Statistics of the last episodes."""

    proven: Policy
    """The last policy whose episode cost no more than usual."""
    usual_cost: Float[Array, ""]
    """Geometric mean of the episodes' `typical_cost`, the last ones weighing most; NaN before the first."""
    usual_length: Float[Array, ""]
    """The same of ‖Δφ‖, the change of the policy per episode; NaN before the first."""

    @staticmethod
    def initial(policy: Policy) -> "TrackRecord":
        """Before the first episode."""
        unknown = jnp.asarray(jnp.nan, jnp.float32)
        return TrackRecord(policy, unknown, unknown)


def typical_cost(cost: CostFunction, rollout: Rollout, settings: Settings) -> Float[Array, ""]:
    """Mean cost of an episode in which no trajectory counts more than `rollback.outlier` times the median one.

    One goal next to a joint's stop can cost ten times the others, and says nothing about the policy. NaN where nothing
    was measured.
    """
    steps = rollout.valid.sum(axis=1)
    each = jax.vmap(lambda one: trajectory_cost(cost, one))(rollout) / jnp.maximum(steps, 1)
    each = jnp.where(steps > 0, each, jnp.nan)
    return jnp.nanmean(jnp.minimum(each, settings.rollback.outlier * jnp.nanmedian(each)))


def is_surprise(
    record: TrackRecord, typical: Float[Array, ""], expected: Float[Array, ""], settings: Settings
) -> Bool[Array, ""]:
    """Whether an episode cost so much more than usual that its policy is given up.

    Never where nothing was predicted for the policy that ran: in the first episode, after a roll-back, after an
    operator's change. If the proven policy is as bad, the robot has changed.
    """
    factor = jnp.asarray(settings.rollback.factor)
    return (factor > 0) & jnp.isfinite(expected) & (typical > factor * record.usual_cost)


def update_record(
    record: TrackRecord,
    before: Policy,
    after: Policy,
    typical: Float[Array, ""],
    expected: Float[Array, ""],
    surprise: Bool[Array, ""],
    settings: Settings,
) -> TrackRecord:
    """The record after an episode that `before` ran at this typical cost, and whose update led to `after`.

    An episode that was a surprise, or of which nothing was measured, leaves it as it is. Where nothing was predicted
    for `before`, its costs begin anew.
    """
    counts = jnp.isfinite(typical) & ~surprise
    known = jnp.isfinite(record.usual_cost) & jnp.isfinite(expected)
    usual_cost = jnp.where(known, _blend(record.usual_cost, typical, settings.rollback.memory), typical)
    proves = counts & (~known | (typical <= settings.rollback.proof * record.usual_cost))
    length = change_length(before, after)
    known_length = jnp.isfinite(record.usual_length)
    usual_length = jnp.where(
        known_length, _blend(record.usual_length, length, settings.policy_step.length_memory), length
    )
    return TrackRecord(
        proven=select_tree(proves, before, record.proven),
        usual_cost=jnp.where(counts, usual_cost, record.usual_cost).astype(jnp.float32),
        usual_length=jnp.where(counts & (length > 0), usual_length, record.usual_length).astype(jnp.float32),
    )


def limit_length(
    policy: Policy, candidate: Policy, usual_length: Float[Array, ""] | float, settings: Settings
) -> Policy:
    """`candidate`, brought back towards `policy` where it is more than `length_factor` times the usual length away."""
    factor = settings.policy_step.length_factor
    if isinstance(factor, float) and factor == 0:
        return candidate
    longest = factor * jnp.asarray(usual_length)
    length = change_length(policy, candidate)
    # False where nothing is usual yet, or the limit is turned off for this member of a sweep.
    too_long = (jnp.asarray(factor) > 0) & (length > longest)
    share = jnp.where(too_long, longest / jnp.maximum(length, jnp.finfo(length.dtype).tiny), 1.0)
    return jax.tree.map(lambda a, b: a + share * (b - a) if eqx.is_inexact_array(a) else a, policy, candidate)


def change_length(before: Policy, after: Policy) -> Float[Array, ""]:
    """‖Δφ‖ between two policies."""
    a, b = (ravel_pytree(eqx.filter(policy, eqx.is_inexact_array))[0] for policy in (before, after))
    return jnp.linalg.norm(b - a)


def _blend(usual: Float[Array, ""], new: Float[Array, ""], memory: Float[Array, ""] | float) -> Float[Array, ""]:
    """The geometric mean of the two, with the weights `memory` and 1 − `memory`."""
    tiny = jnp.finfo(usual.dtype).tiny
    return jnp.exp(memory * jnp.log(jnp.maximum(usual, tiny)) + (1 - memory) * jnp.log(jnp.maximum(new, tiny)))
