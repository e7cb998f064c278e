"""A JAX pytree as named arrays, and back, bit for bit.

A leaf is named by its path: `learner.policy.layers.0.weight`. Within one step of a path, `.`, `#` and `\\` are
preceded by `\\`, so that no two leaves share a name.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from firsthand.errors import UserError
from firsthand.runs import packed

Tree = TypeVar("Tree")


def to_arrays(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of `tree` that hold numbers, by name.

    These are JAX and NumPy arrays, typed random keys (their words; the name ends in `#` and the generator, as
    in `key#threefry2x32`), and Python's bool, int and float, because a counter kept as a plain int is part of
    the state too. Other leaves, such as functions, are left out. JAX's weak types are not recorded.
    """
    arrays: dict[str, np.ndarray] = {}
    for path, leaf in jtu.tree_flatten_with_path(tree)[0]:
        if not _holds_numbers(leaf):
            continue
        name, array = _name(path, leaf), _to_array(leaf)
        if name in arrays:
            raise ValueError(f"two leaves of the tree are called {name!r}")
        if not packed.storable(array.dtype):
            raise ValueError(f"the leaf {name!r} has the type {array.dtype}, which cannot be stored")
        arrays[name] = array
    return arrays


def from_arrays(template: Tree, arrays: Mapping[str, np.ndarray]) -> Tree:
    """A tree like `template` with the numbers of `arrays`.

    `template` gives the structure, the kind of each leaf (JAX or NumPy array, key, Python number) and the
    leaves that hold no numbers. Names, shapes and types must agree exactly. A JAX array goes to the device
    (or devices) that the template's is on.
    """
    paths_and_leaves, structure = jtu.tree_flatten_with_path(template)
    names = [_name(path, leaf) if _holds_numbers(leaf) else None for path, leaf in paths_and_leaves]
    _check_names({name for name in names if name is not None}, set(arrays))
    leaves = [
        leaf if name is None else _like(name, leaf, arrays[name])
        for name, (_, leaf) in zip(names, paths_and_leaves, strict=True)
    ]
    return jtu.tree_unflatten(structure, leaves)


def _holds_numbers(leaf: Any) -> bool:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise TypeError("a leaf of the tree is only a shape; give a tree with arrays")
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _name(path: tuple[Any, ...], leaf: Any) -> str:
    steps = [_escape(jtu.keystr((step,), simple=True)) for step in path]
    # A tree that is a single leaf has an empty path.
    name = ".".join(steps) if steps else "leaf"
    return f"{name}#{jax.random.key_impl(leaf)}" if _is_key(leaf) else name


def _escape(step: str) -> str:
    return step.replace("\\", "\\\\").replace(".", "\\.").replace("#", "\\#")


def _to_array(leaf: Any) -> np.ndarray:
    if _is_key(leaf):
        return np.asarray(jax.random.key_data(leaf))
    if isinstance(leaf, jax.Array):
        return np.asarray(leaf)
    if isinstance(leaf, np.ndarray | np.generic):
        # A copy, because NumPy arrays may be changed later.
        return np.array(leaf)
    return np.array(leaf, dtype=bool if isinstance(leaf, bool) else np.int64 if isinstance(leaf, int) else float)


def _check_names(expected: set[str], given: set[str]) -> None:
    missing, extra = sorted(expected - given), sorted(given - expected)
    for name in missing:
        stem = name.rpartition("#")[0]
        other = [e for e in extra if stem and e.rpartition("#")[0] == stem]
        if other:
            raise UserError(
                f"the random key {stem!r} was stored for the generator {other[0].rpartition('#')[2]!r}, "
                f"and here it is {name.rpartition('#')[2]!r}."
            )
    if missing:
        raise UserError(f"the stored arrays lack {missing[0]!r}{_and_more(missing)}.")
    if extra:
        raise UserError(f"the stored arrays have {extra[0]!r}{_and_more(extra)}, for which there is no place here.")


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _like(name: str, leaf: Any, array: np.ndarray) -> Any:
    """`array` as the same kind of leaf as `leaf`."""
    expected = _to_array(leaf)
    if array.shape != expected.shape:
        raise UserError(f"{name!r} was stored with the shape {array.shape}, and here it is {expected.shape}.")
    if array.dtype != expected.dtype:
        raise UserError(f"{name!r} was stored as {array.dtype}, and here it is {expected.dtype}.")
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array):
        # A copy first: on a CPU, JAX may otherwise keep using the caller's memory. An array that was never put
        # on a device by hand must not be now, or functions compiled for it would be compiled again.
        restored = jax.device_put(np.array(array), leaf.sharding if leaf.committed else None)
        if restored.dtype != array.dtype:
            raise UserError(f"{name!r} was stored as {array.dtype}, which needs JAX_ENABLE_X64=1.")
        return restored
    if isinstance(leaf, np.ndarray):
        return np.array(array)
    if isinstance(leaf, np.generic):
        return array[()]
    return type(leaf)(array.item())
