"""Settings as a pytree, and helpers for whole pytrees."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from .settings import GROUPS, Settings, is_number


def _register(kind: type, leaves: tuple[str, ...], others: tuple[str, ...]) -> None:
    """Make a frozen dataclass a pytree with these fields as leaves; the others are part of its structure."""

    def flatten(value):
        return tuple(getattr(value, name) for name in leaves), tuple(getattr(value, name) for name in others)

    def flatten_with_keys(value):
        parts, structure = flatten(value)
        keyed = tuple((jax.tree_util.GetAttrKey(name), part) for name, part in zip(leaves, parts, strict=True))
        return keyed, structure

    def unflatten(structure, parts):
        # Not through `__init__`: JAX puts other things than numbers here, which are not to be checked.
        value = object.__new__(kind)
        for name, part in zip((*leaves, *others), (*parts, *structure), strict=True):
            object.__setattr__(value, name, part)
        return value

    jax.tree_util.register_pytree_with_keys(kind, flatten_with_keys, unflatten, flatten)


for _kind in GROUPS.values():
    _fields = dataclasses.fields(_kind)
    _register(
        _kind,
        tuple(field.name for field in _fields if is_number(field)),
        tuple(field.name for field in _fields if not is_number(field)),
    )
_register(Settings, tuple(GROUPS), ())


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every floating-point leaf is finite."""
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    return jnp.all(jnp.asarray(leaves))


def select_tree(condition: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """`new` where the condition holds, else `old`; both have the same structure."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b) if eqx.is_array(a) else a, new, old)


def stack_trees(trees: Sequence[Any]) -> Any:
    """Pytrees of one structure as one pytree whose arrays have a leading axis.

    What is not an array is taken from the first. Settings that differ become arrays: see `stack_settings`.
    """
    return jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *trees)


def stack_settings(members: Sequence[Settings]) -> Settings:
    """Settings with an array of shape `(members,)` for every number in which the members differ.

    Only numbers with a decimal point may differ. What is the same for all stays a Python number, compiled in.
    """

    def stack(*values: float) -> Any:
        return values[0] if all(value == values[0] for value in values) else jnp.asarray(values, jnp.float32)

    return jax.tree.map(stack, *members)


def take_member(tree: Any, index: int) -> Any:
    """One of the pytrees that were stacked."""
    return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, tree)
