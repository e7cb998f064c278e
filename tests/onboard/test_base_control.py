"""A base under the policy: the first command is the base's, numpy and JAX agree, and what is bad is refused."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.controllers.pi import Axis, pi_base
from firsthand.models import Controller, Policy
from firsthand.tasks import excavator_task
from firsthand_onboard import PlanarChain, SpecError, load_controller, policy_to_bytes
from firsthand_onboard.base_control import (
    FADE_S,
    NO_LIMIT,
    BaseControl,
    ForeignBase,
    PolicyBase,
    base_arrays,
    base_from_arrays,
    check_base,
)
from firsthand_onboard.features import build_reference, initial_state, preview_points
from firsthand_onboard.kinematics import chain_jacobian, tip_jacobian

TASK = excavator_task()
SPEC = TASK.spec


def axis(sign: float = 1.0) -> Axis:
    size = np.asarray([0.05, 0.2, 1.0])
    return Axis(sign, (size, np.asarray([0.0, 0.1, 0.9])), (size, np.asarray([0.0, 0.2, 1.2])), 0.1, 0.2)


def make_policy(authority: float = 0.5, error_limit: float = NO_LIMIT, *, zero: bool = True) -> Policy:
    base = pi_base(SPEC, tuple(axis(s) for s in (-1.0, 1.0, 1.0, 1.0)))
    control = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), BaseControl(base, authority, error_limit))
    policy = Policy.random(SPEC, key=jax.random.key(0), control=control)
    if zero:
        return policy
    *hidden, (weight, bias) = policy.layers
    return dataclasses.replace(policy, layers=(*hidden, (weight + 0.3, bias)))


def motion() -> tuple[np.ndarray, np.ndarray]:
    """A state, and a reference that begins there."""
    measured = np.asarray([*TASK.home, *np.zeros(4)], np.float32)
    goal = np.asarray(TASK.home, np.float32) + np.asarray([0.1, -0.1, 0.1, 0.1], np.float32)
    return initial_state(SPEC.layout, measured, np.zeros(4, np.float32)), build_reference(SPEC, measured, goal)


def test_the_jacobian_is_exact():
    position = np.asarray(TASK.home) + 0.1
    chain = SPEC.kinematics
    assert isinstance(chain, PlanarChain)
    np.testing.assert_allclose(tip_jacobian(chain, position), chain_jacobian(chain, position), atol=1e-8)


def test_with_a_last_layer_of_zeros_the_command_is_exactly_the_base_s():
    policy, (state, reference) = make_policy(), motion()
    runs: Any = Controller(policy).for_robot().policy
    runs.begin(state, motion=True)
    memory = np.asarray(runs.base.memory[:-2])
    for step in range(20):
        preview = preview_points(SPEC, reference, step)
        alone, memory = runs.base.control.base.step(SPEC, state, preview, memory)
        np.testing.assert_array_equal(runs(state, preview), alone.astype(np.float32))
        state = state + np.float32(0.001)
    assert np.abs(memory[4:]).max() > 0  # the integral is at work


def test_numpy_and_jax_agree():
    policy, (state, reference) = make_policy(zero=False), motion()
    runs: Any = Controller(policy).for_robot().policy
    runs.begin(state, motion=True)
    memory, step_on = policy.begin(jnp.asarray(state)), eqx.filter_jit(policy.step)
    for step in range(20):
        preview = preview_points(SPEC, reference, step)
        command, memory = step_on(jnp.asarray(state), jnp.asarray(preview), memory)
        np.testing.assert_allclose(runs(state, preview), command, atol=2e-5)
        np.testing.assert_allclose(runs.base.memory, memory, atol=2e-5)
        state = state + np.float32(0.002)


def test_a_large_error_takes_the_learned_part_back_without_a_jump():
    policy, (state, reference) = make_policy(error_limit=0.2, zero=False), motion()
    runs: Any = Controller(policy).for_robot().policy
    runs.begin(state, motion=True)
    away = preview_points(SPEC, reference, 0) + np.asarray([0.5, 0.0], np.float32) * SPEC.scales.error
    trusts = []
    for _ in range(60):
        runs(state, away)
        trusts.append(float(runs.base.memory[-1]))
    assert trusts[0] == 1.0
    assert trusts[-1] == 0.0
    assert np.abs(np.diff(trusts)).max() <= 1.01 * SPEC.period_s / FADE_S
    runs.begin(state, motion=False)  # it stays so in the next trajectory of the motion
    assert runs.base.memory[-1] == 0.0
    base, _ = runs.base.control.base.step(SPEC, state, away, runs.base.memory[:-2])
    np.testing.assert_array_equal(runs(state, away), base.astype(np.float32))
    runs.begin(state, motion=True)
    assert runs.base.memory[-1] == 1.0


def test_a_base_survives_a_file(tmp_path):
    policy, (state, reference) = make_policy(0.4, 3.0, zero=False), motion()
    file = tmp_path / "policy.safetensors"
    file.write_bytes(policy_to_bytes(SPEC, policy.layers, None, policy.control))
    loaded, expected = load_controller(file).policy, Controller(policy).for_robot().policy
    for one in (loaded, expected):
        one.begin(state, motion=True)
    np.testing.assert_array_equal(loaded(state, reference[:9]), expected(state, reference[:9]))
    again: Any = Policy.from_arrays(SPEC, policy.arrays())
    assert float(again.control.authority) == pytest.approx(0.4)


def test_a_base_that_does_not_fit_is_refused_in_a_sentence():
    policy: Any = make_policy()
    arrays = base_arrays(policy.control)
    with pytest.raises(SpecError, match=r"lacks the array base\.pi\.gain"):
        base_from_arrays(SPEC, {name: a for name, a in arrays.items() if name != "base.pi.gain"})
    with pytest.raises(SpecError, match=r"base\.pi\.sign has shape \(3,\), but must have \(4,\)"):
        base_from_arrays(SPEC, {**arrays, "base.pi.sign": np.ones(3, np.float32)})
    with pytest.raises(SpecError, match=r"base\.pi\.integral_s has integral times of \[0\.0.*must be above 0"):
        base_from_arrays(SPEC, {**arrays, "base.pi.integral_s": np.zeros(4, np.float32)})
    with pytest.raises(SpecError, match=r"base\.pi\.up has highest speeds of \[0\.0.*must be above 0"):
        base_from_arrays(SPEC, {**arrays, "base.pi.up": np.zeros_like(arrays["base.pi.up"])})
    with pytest.raises(SpecError, match=r"base\.pi\.sign is \[0\.5.*must hold 1 or -1"):
        base_from_arrays(SPEC, {**arrays, "base.pi.sign": np.full(4, 0.5, np.float32)})
    with pytest.raises(SpecError, match=r"base\.authority is 2\.0"):
        base_from_arrays(SPEC, {**arrays, "base.authority": np.float32(2)})
    with pytest.raises(SpecError, match="function in a file"):
        check_base(SPEC, ForeignBase())
    with pytest.raises(SpecError, match="layers"):
        check_base(SPEC, PolicyBase(policy.layers[:-1]))
