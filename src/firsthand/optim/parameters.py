"""Which leaves of a policy are optimised."""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree


def split_parameters(policy: PyTree) -> tuple[PyTree, PyTree]:
    """φ and the rest of a policy: its floating-point arrays, and all other leaves. `eqx.combine` joins them again."""
    parameters, static = eqx.partition(policy, _is_parameter)
    if not jax.tree.leaves(parameters):
        raise ValueError(
            "The policy has no floating-point arrays to optimise. It must be a pytree, for example an equinox.Module "
            "or jax.tree_util.Partial(apply, params)."
        )
    return parameters, static


def _is_parameter(leaf: object) -> bool:
    return eqx.is_inexact_array(leaf) or (isinstance(leaf, np.ndarray) and np.issubdtype(leaf.dtype, np.floating))
