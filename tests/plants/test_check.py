"""`check_plant` passes sound plants and names what is wrong with broken ones."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.plants import check_derivatives
from firsthand.plants.base import AbstractPlant
from firsthand.plants.check import PlantCheckError, check_plant
from firsthand.plants.check_runs import starting_positions
from firsthand.plants.probes import DelayedDoubleIntegrator, ScalarPlant

KEY = jax.random.key(0)
POSITIONS = np.array([[0.0, 0.0], [0.5, -0.3]])


class Cart(AbstractPlant):
    """Two damped masses with springs towards where they were reset: sound, and smooth but not linear.

    The broken plants below differ from it in one thing each.
    """

    damping: jax.Array = eqx.field(converter=jnp.asarray, default=1.0)

    @property
    def period_s(self) -> float:
        return 0.05

    @property
    def num_commands(self) -> int:
        return 2

    @property
    def num_measured(self) -> int:
        return 4

    def reset(self, position) -> Any:
        return {"q": position, "v": jnp.zeros_like(position), "anchor": position, "count": jnp.int32(0)}

    def force(self, state, command):
        return 4.0 * jnp.tanh(command) - self.damping * state["v"] - jnp.sin(state["q"] - state["anchor"])

    def step(self, state, command, *, key) -> Any:
        v = state["v"] + self.period_s * self.force(state, command)
        return {**state, "q": state["q"] + self.period_s * v, "v": v, "count": state["count"] + 1}

    def measure(self, state, *, key):
        return jnp.concatenate([state["q"], state["v"]])


def check(plant, **options):
    return check_plant(plant, **{"positions": POSITIONS, "key": KEY, "steps": 60, **options})


@pytest.mark.parametrize(
    "plant",
    [ScalarPlant(a=0.9, b=2.0), DelayedDoubleIntegrator(delay=0), DelayedDoubleIntegrator(delay=3)],
)
def test_probes_pass(plant):
    report = check_plant(plant, key=KEY, allowed_kink_fraction=0.0)
    assert report.derivative_dtype == "float64"
    assert report.rest_drift == 0.0
    assert report.derivative_error < 1e-8
    assert report.reverse_error < 1e-12
    assert len(report.measured_low) == plant.num_measured
    assert all(low < high for low, high in zip(report.measured_low, report.measured_high, strict=True))


def test_a_smooth_plant_passes_without_kinks_and_repeatably():
    report = check(Cart(), allowed_kink_fraction=0.0)
    assert report.kink_fraction == 0.0
    assert report.derivative_error < 1e-6
    assert report == check(Cart())


def test_default_position_is_zeros_of_the_right_length():
    np.testing.assert_array_equal(starting_positions(Cart(), None), [[0.0, 0.0]])


class Float32Only(Cart):
    def step(self, state, command, *, key):
        state = super().step(state, command, key=key)
        return {**state, "v": state["v"].astype(jnp.float32)}


def test_a_plant_that_leaves_float64_is_checked_in_float32():
    report = check(Float32Only(), allowed_kink_fraction=0.0)
    assert report.derivative_dtype == "float32"


class NumpyConstants(Cart):
    """A numpy constant inside a scan, which JAX remembers in the width in which it first saw it."""

    def force(self, state, command):
        force = super().force(state, command)
        return jax.lax.scan(lambda f, _: (f * (2.0 * jnp.asarray((0.5, 0.5)) * HALVES), None), force, None, length=2)[0]


HALVES = np.array([0.5, 0.5])


def test_numpy_constants_do_not_confuse_float32_and_float64():
    assert check(NumpyConstants()).derivative_dtype == "float64"
    check(NumpyConstants(), key=jax.random.PRNGKey(3))  # Old-style keys work, too.


class Noisy(Cart):
    def measure(self, state, *, key):
        return super().measure(state, key=key) + 1e-4 * jax.random.normal(key, (4,))


def test_noise_is_allowed_when_announced():
    check(Noisy(), noise_free=False)
    with pytest.raises(PlantCheckError, match="must not depend on the key"):
        check(Noisy())


class DeadBand(Cart):
    """Two kinks per channel: random directions meet them now and then, and half of the commands do nothing."""

    def force(self, state, command):
        opened = jnp.sign(command) * jax.nn.relu(jnp.abs(command) - 0.3)
        return super().force(state, 5.0 * opened) - 0.5 * jnp.clip(50.0 * state["v"], -1.0, 1.0)


def test_kinks_are_met_and_reported():
    # One kink lies within the long increment of float32, so that some directions do straddle it.
    class Float32DeadBand(DeadBand, Float32Only):
        pass

    report = check(Float32DeadBand(), allowed_kink_fraction=1.0, num_points=64)
    assert 0.0 < report.kink_fraction < 0.5
    with pytest.raises(PlantCheckError, match="disagrees with finite differences"):
        check(Float32DeadBand(), allowed_kink_fraction=0.0, num_points=64)
    assert check(DeadBand()).kink_fraction <= 0.05


# Broken plants --------------------------------------------------------------------------------------------------------


@jax.custom_jvp
def wrong_tanh(x):
    return jnp.tanh(x)


@wrong_tanh.defjvp
def _(primals, tangents):
    return jnp.tanh(primals[0]), tangents[0]


class WrongCommandJVP(Cart):
    def force(self, state, command):
        return super().force(state, jnp.arctanh(jnp.clip(wrong_tanh(command), -0.99, 0.99)))


class WrongStateJVP(Cart):
    """The error is in a weak force: only a comparison quantity by quantity sees it."""

    def force(self, state, command):
        return super().force(state, command) - 0.2 * wrong_tanh(state["v"])


class WrongOnlyLater(DelayedDoubleIntegrator):
    """The delay line blocks the derivative: over one step nothing is wrong."""

    def step(self, state, command, *, key):
        state = super().step(state, command, key=key)
        return eqx.tree_at(lambda s: s.pending, state, jax.lax.stop_gradient(state.pending))


@jax.custom_vjp
def only_reverse(x):
    return 1.5 * x


only_reverse.defvjp(lambda x: (1.5 * x, None), lambda _, g: (1.5 * g,))


class OnlyReverse(Cart):
    """custom_vjp functions have no forward mode at all."""

    def force(self, state, command):
        return super().force(state, only_reverse(command))


class InfiniteGradientAtRest(Cart):
    """|v| as a square root: fine while moving, NaN in reverse mode at v = 0."""

    def force(self, state, command):
        return super().force(state, command) - 0.1 * state["v"] * jnp.sqrt(jnp.sum(state["v"] ** 2))


class WhileLoop(Cart):
    def force(self, state, command):
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 0.9), (0, command))[1]


class Drifting(Cart):
    def force(self, state, command):
        return super().force(state, command) + 0.01


class TurnsToNaN(Cart):
    def measure(self, state, *, key):
        return super().measure(state, key=key) + 0.0 * jnp.sqrt(1.0 - state["q"][0])


class HiddenInfinity(Cart):
    def step(self, state, command, *, key):
        return {**super().step(state, command, key=key), "anchor": state["anchor"] + command / command * 0.0}


class KeyDependent(Cart):
    def step(self, state, command, *, key):
        return super().step(state, command + 1e-6 * jax.random.normal(key, (2,)), key=key)


class ChangesDtype(Cart):
    def step(self, state, command, *, key):
        state = super().step(state, command, key=key)
        return {**state, "v": state["v"].astype(jnp.float16)}


class ChangesShape(Cart):
    def step(self, state, command, *, key):
        return {**state, "count": jnp.zeros(1, jnp.int32)}


class ChangesStructure(Cart):
    def step(self, state, command, *, key):
        return {**super().step(state, command, key=key), "extra": command}


class WholeNumbers(Cart):
    def measure(self, state, *, key):
        return super().measure(state, key=key).astype(jnp.int32)


class WrongNumMeasured(Cart):
    @property
    def num_measured(self) -> int:
        return 3


class WrongNumCommands(Cart):
    @property
    def num_commands(self) -> int:
        return 3

    def step(self, state, command, *, key):
        return super().step(state, command[:2], key=key)


class TooFewCommands(Cart):
    """Indexing past the end of an array is not an error under JAX, but mixing three with two is."""

    @property
    def num_commands(self) -> int:
        return 3


class NoPeriod(Cart):
    @property
    def period_s(self) -> float:
        return 0.0


class Untraceable(Cart):
    def step(self, state, command, *, key):
        return super().step(state, command if command[0] > 0 else -command, key=key)


class NotRepeatable(Cart):
    def measure(self, state, *, key):
        draw = jax.pure_callback(
            lambda: np.random.default_rng().normal(size=4).astype(np.float32) * np.float32(1e-6),
            jax.ShapeDtypeStruct((4,), jnp.float32),
            vmap_method="sequential",
        )
        return super().measure(state, key=key) + draw


class NotBatched(Cart):
    """Its callback is told to expect one sample."""

    def force(self, state, command):
        force = super().force(state, command)
        return jax.pure_callback(lambda f: f, jax.ShapeDtypeStruct((2,), force.dtype), force)


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (WrongCommandJVP(), r"JVP with respect to the command over 1 step\(s\) disagrees"),
        (WrongStateJVP(), r"JVP with respect to the state over 1 step\(s\) disagrees"),
        (OnlyReverse(), "cannot be differentiated in both modes: TypeError"),
        (InfiniteGradientAtRest(), "derivatives over 10 steps in float32 are not finite at rest with zero commands"),
        (WhileLoop(), "cannot be differentiated in both modes: ValueError: Reverse-mode"),
        (Drifting(), r"reset must be at rest, but from position \[.*\] the measured configuration moves"),
        (TurnsToNaN(), r"measured is not finite after \d+ steps of (smooth|bang-bang) commands"),
        (HiddenInfinity(), r"state\['anchor'\] is not finite after 1 steps of zero commands"),
        (KeyDependent(), "must not depend on the key"),
        (NotRepeatable(), "two runs differ"),
        (ChangesDtype(), r"state\['v'\] was float32\(2,\) and becomes float16\(2,\)"),
        (ChangesShape(), r"state\['count'\] was int32\(\) and becomes int32\(1,\)"),
        (ChangesStructure(), "step must keep the state's structure"),
        (WholeNumbers(), "measure must return floating-point numbers, not int32"),
        (WrongNumMeasured(), r"measure must return shape \(3,\) = \(num_measured,\), not \(4,\)"),
        (WrongNumCommands(), "Command channel 2 has no effect"),
        (TooFewCommands(), "step cannot be traced: TypeError"),
        (NoPeriod(), "period_s must be a positive number of seconds, not 0.0"),
        (Untraceable(), "step cannot be traced: TracerBoolConversionError"),
        (NotBatched(), "cannot be run under jit, vmap and scan: ValueError|NotImplementedError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, AbstractPlant) else "",
)
def test_broken_plants_are_found(plant, message):
    with pytest.raises(PlantCheckError, match=message):
        check(plant)


def test_reverse_mode_that_is_not_the_transpose_of_forward_mode_is_found(monkeypatch):
    honest = check_derivatives._linearise

    def lie(plant, points):
        pushed, (state, commands) = honest(plant, points)
        return pushed, (state, 1.1 * commands)

    monkeypatch.setattr(check_derivatives, "_linearise", lie)
    with pytest.raises(PlantCheckError, match="in float32 differ from forward mode"):
        check(Cart())


def test_a_derivative_that_is_wrong_only_after_several_steps_is_found():
    with pytest.raises(PlantCheckError, match=r"over 10 step\(s\) disagrees"):
        check_plant(WrongOnlyLater(delay=3), key=KEY, steps=60)


def test_wrong_num_measured_is_found_without_positions():
    with pytest.raises(PlantCheckError, match="correct num_measured, or pass positions"):
        check_plant(WrongNumMeasured(), key=KEY)


def test_rest_tolerance_and_configuration_choose_what_may_move():
    class Warming(Cart):
        """The last measurement is a temperature that rises at rest."""

        def measure(self, state, *, key):
            warmth = 0.01 * state["count"].astype(state["q"].dtype)
            return super().measure(state, key=key).at[3].set(warmth + 0.1 * state["v"][1])

    with pytest.raises(PlantCheckError, match=r"moves by 0.2 in 1 s .* \(allowed: 0.1\)"):
        check(Warming(), rest_tolerance=0.1)
    assert check(Warming(), configuration=slice(0, 2)).rest_drift == 0.0


def test_positions_must_not_be_empty():
    with pytest.raises(ValueError, match="one configuration per row"):
        check(Cart(), positions=np.zeros((0, 2)))
