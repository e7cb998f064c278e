from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import ml_dtypes
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firsthand.errors import UserError
from firsthand.runs import packed, pytrees


class State(NamedTuple):
    policy: eqx.nn.MLP
    optimizer: optax.OptState
    key: jax.Array
    step: int
    best: float


def make_state(seed: int) -> State:
    policy_key, key = jax.random.split(jax.random.key(seed))
    policy = eqx.nn.MLP(3, 2, 8, 2, key=policy_key)
    return State(policy, optax.adam(1e-3).init(eqx.filter(policy, eqx.is_array)), key, seed, seed / 3)


def bits(leaf: Any) -> tuple:
    array = np.asarray(jax.random.key_data(leaf) if pytrees._is_key(leaf) else leaf)
    return array.dtype, array.shape, array.tobytes()


def through_a_file(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return packed.unpack(packed.pack(arrays, {}))[0]


def test_a_learner_state_comes_back_bit_for_bit() -> None:
    state, template = make_state(1), make_state(2)
    restored = pytrees.from_arrays(template, through_a_file(pytrees.to_arrays(state)))
    assert jtu.tree_structure(restored) == jtu.tree_structure(state)
    for before, after in zip(jtu.tree_leaves(state), jtu.tree_leaves(restored), strict=True):
        assert type(before) is type(after)
        if isinstance(before, jax.Array | int | float):
            assert bits(before) == bits(after)
    assert (restored.step, restored.best) == (1, 1 / 3)
    assert restored.policy.activation is template.policy.activation
    assert jnp.array_equal(jax.random.normal(state.key, (5,)), jax.random.normal(restored.key, (5,)))


def test_names_are_readable_and_stable() -> None:
    names = list(pytrees.to_arrays(make_state(0)))
    assert names[:2] == ["policy.layers.0.weight", "policy.layers.0.bias"]
    assert "optimizer.0.mu.layers.2.bias" in names
    assert names[-3:] == ["key#threefry2x32", "step", "best"]


def test_names_of_odd_keys_do_not_collide() -> None:
    tree = {"a.b": np.ones(1), "a": {"b": np.zeros(1)}, "k#rbg": np.ones(2), "k": jax.random.key(0, impl="rbg")}
    arrays = pytrees.to_arrays(tree)
    assert sorted(arrays) == ["a.b", "a\\.b", "k#rbg", "k\\#rbg"]
    restored = pytrees.from_arrays(tree, through_a_file(arrays))
    assert restored["a.b"] == 1
    assert restored["a"]["b"] == 0


def test_the_whole_tree_may_be_one_leaf() -> None:
    assert pytrees.from_arrays(jnp.zeros(()), through_a_file(pytrees.to_arrays(jnp.ones(())))) == 1


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_keep_their_generator(impl: str) -> None:
    keys = jax.random.split(jax.random.key(7, impl=impl), (2, 3))
    template = jax.random.split(jax.random.key(0, impl=impl), (2, 3))
    restored = pytrees.from_arrays(template, through_a_file(pytrees.to_arrays(keys)))
    assert restored.dtype == keys.dtype
    assert restored.shape == keys.shape
    assert jnp.array_equal(jax.random.uniform(restored[1, 2], (4,)), jax.random.uniform(keys[1, 2], (4,)))


NAN_PAYLOADS = {
    np.float64: np.array([0x7FF8000000001234, 0x7FF0000000000001, 0xFFF8000000000000], np.uint64),
    np.float32: np.array([0x7FC12345, 0x7F812345, 0xFFC00001, 0x80000000], np.uint32),
    np.float16: np.array([0x7E01, 0x7C01, 0x8000], np.uint16),
}


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("dtype", NAN_PAYLOADS)
def test_nan_payloads_survive(kind, dtype) -> None:
    with jax.enable_x64(True):
        leaf = kind(NAN_PAYLOADS[dtype].view(dtype))
        restored = pytrees.from_arrays(leaf, through_a_file(pytrees.to_arrays(leaf)))
        assert type(restored) is type(leaf)
        assert bits(restored) == bits(leaf)


def test_bfloat16_survives() -> None:
    leaf = jnp.arange(5, dtype=jnp.bfloat16)
    restored = pytrees.from_arrays(leaf, through_a_file(pytrees.to_arrays(leaf)))
    assert restored.dtype == ml_dtypes.bfloat16
    assert bits(restored) == bits(leaf)


def test_arrays_that_are_not_in_c_order_survive() -> None:
    tree = {"t": np.arange(6.0).reshape(2, 3).T, "s": np.arange(10)[::-2], "f": np.ones((2, 3), order="F")}
    restored = pytrees.from_arrays(tree, through_a_file(pytrees.to_arrays(tree)))
    assert all(np.array_equal(restored[name], tree[name]) for name in tree)


def test_an_array_stays_free_to_move_between_devices() -> None:
    free, placed = jnp.zeros(2), jax.device_put(jnp.zeros(2), jax.devices()[0])
    restored = pytrees.from_arrays((free, placed), pytrees.to_arrays((free, placed)))
    assert [leaf.committed for leaf in restored] == [free.committed, placed.committed] == [False, True]


def test_restored_arrays_share_no_memory_with_the_given_ones() -> None:
    tree = {"jax": jnp.zeros(4), "numpy": np.zeros(4)}
    arrays = {name: np.ones(4, leaf.dtype) for name, leaf in tree.items()}
    restored = pytrees.from_arrays(tree, arrays)
    for array in arrays.values():
        array[:] = 5
    assert float(restored["jax"].sum()) == float(restored["numpy"].sum()) == 4


TYPES = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8")
storable = st.sampled_from([np.dtype(name) for name in TYPES])
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def any_bits(draw: st.DrawFn) -> np.ndarray:
    """An array with arbitrary bits, so that every NaN payload, infinity and denormal is among them."""
    dtype, shape = draw(storable), draw(shapes)
    size = int(np.prod(shape)) * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    return np.frombuffer(data, dtype).reshape(shape)


numbers = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats()
words = st.text(st.characters(codec="utf-8"), max_size=6)
trees = st.recursive(
    any_bits() | any_bits().map(lambda a: a.reshape(-1)[0] if a.size else a) | numbers | st.just(len) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)


@given(trees)
@settings(deadline=None, max_examples=200)
def test_any_tree_comes_back_bit_for_bit(tree) -> None:
    restored = pytrees.from_arrays(tree, through_a_file(pytrees.to_arrays(tree)))
    assert jtu.tree_structure(restored) == jtu.tree_structure(tree)
    for before, after in zip(jtu.tree_leaves(tree), jtu.tree_leaves(restored), strict=True):
        assert type(before) is type(after)
        assert after is len if before is len else bits(before) == bits(after)


@given(st.lists(any_bits(), max_size=4))
@settings(deadline=None, max_examples=50)
def test_any_jax_arrays_come_back_bit_for_bit(arrays) -> None:
    with jax.enable_x64(True):
        tree = [jnp.asarray(array) for array in arrays]
        restored = pytrees.from_arrays(tree, through_a_file(pytrees.to_arrays(tree)))
    assert [bits(leaf) for leaf in restored] == [bits(array) for array in arrays]


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [
        ({"b": np.zeros(2, np.int32)}, "lack 'a'"),
        ({}, "lack 'a' and 1 more"),
        ({"a": np.zeros(3), "b": np.zeros(2, np.int32), "c": np.zeros(1)}, "'c', for which there is no place"),
        ({"a": np.zeros(4), "b": np.zeros(2, np.int32)}, r"'a' .* shape \(4,\), and here it is \(3,\)"),
        ({"a": np.zeros(3, np.float32), "b": np.zeros(2, np.int32)}, "'a' .* float32, and here it is float64"),
    ],
)
def test_a_mismatch_is_one_sentence(stored, sentence: str) -> None:
    template = {"a": np.zeros(3), "b": np.zeros(2, np.int32)}
    with pytest.raises(UserError, match=sentence) as caught:
        pytrees.from_arrays(template, stored)
    assert str(caught.value).count(".") == 1


def test_another_generator_is_named() -> None:
    stored = pytrees.to_arrays({"key": jax.random.key(0, impl="rbg")})
    with pytest.raises(UserError, match="'key' was stored for the generator 'rbg', and here it is 'threefry2x32'"):
        pytrees.from_arrays({"key": jax.random.key(0)}, stored)


def test_what_cannot_be_stored_is_refused() -> None:
    for leaf in (np.array(["text"]), np.array([object()]), np.zeros(2, np.complex128), np.zeros(2, ">f8")):
        with pytest.raises(ValueError, match="cannot be stored"):
            pytrees.to_arrays({"leaf": leaf})
    with pytest.raises(TypeError, match="only a shape"):
        pytrees.from_arrays([jax.ShapeDtypeStruct((1,), jnp.float32)], {"0": np.zeros(1, np.float32)})
