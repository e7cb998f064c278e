"""Sensors: what stands between the true state of a machine and what is measured of it.

One model for simulated plants (JAX, inside a compiled episode) and for Gymnasium environments (numpy): `advance` moves
the part of the sensors that remembers, `read` draws the part that is random. Each entry y of a measurement passes, in
this order,

    jitter         y + ξ (y − y₋₁),  ξ ~ N(0, jitter²): the sample is taken a little early or late
    lag            f ← lag · f + (1 − lag) · y: a first-order low-pass, as in a velocity estimate
    delay          the value of `delay` control periods ago
    stuck          a sensor that is stuck keeps what it showed last
    noise          + noise · N(0, 1)
    quantisation   rounded to whole multiples of `resolution`
    outliers       with probability `outlier_share` off by ± `outlier_size` for one sample
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from firsthand_onboard.arrays import namespace

from ..errors import UserError
from .base import AbstractPlant
from .wrapped import AbstractWrapper

PerEntry = Any
"""A number for all entries, or one per entry."""


class SensorState(NamedTuple):
    """The sensors' state, carried from one control period to the next."""

    previous: Any
    """y₋₁, the last true measurement, `(measured,)`."""
    history: Any
    """The low-passed values of now and of `delay` periods before, newest first, `(1 + delay, measured)`."""
    shown: Any
    """The value at which a stuck sensor stays, `(measured,)`."""


class SensorDraws(NamedTuple):
    """The random parts of one reading, each `(measured,)`."""

    normal: Any
    """Standard normal: noise."""
    uniform: Any
    """In [0, 1): whether a value is an outlier."""
    sign: Any
    """±1: to which side."""


class Sensors(eqx.Module):
    """How measurements differ from the truth. Every field but `delay` is a number, or one per measured entry.

    Fields are arrays, so that other values never mean another compilation; `delay` is part of the shapes.
    """

    noise: Float[Array, "..."]
    """Standard deviation of white noise, in the unit of the entry."""
    resolution: Float[Array, "..."]
    """Size of a quantisation step; 0 for no quantisation."""
    lag: Float[Array, "..."]
    """Share of the old value that a low-pass keeps per control period; 0 for no filter."""
    jitter: Float[Array, "..."]
    """Standard deviation of the sampling instant, as a share of the control period."""
    outlier_share: Float[Array, "..."]
    """Probability that a value is an outlier."""
    outlier_size: Float[Array, "..."]
    """How far an outlier is off, in the unit of the entry."""
    stuck: Float[Array, "..."]
    """1 for a sensor that keeps showing what it showed last, 0 for one that works."""
    delay: int = eqx.field(static=True, default=0)
    """Transport delay in whole control periods."""

    def __init__(
        self,
        *,
        noise: PerEntry = 0.0,
        resolution: PerEntry = 0.0,
        lag: PerEntry = 0.0,
        jitter: PerEntry = 0.0,
        outlier_share: PerEntry = 0.0,
        outlier_size: PerEntry = 0.0,
        stuck: PerEntry = 0.0,
        delay: Any = 0,
    ) -> None:
        values = {
            "noise": noise,
            "resolution": resolution,
            "lag": lag,
            "jitter": jitter,
            "outlier_share": outlier_share,
            "outlier_size": outlier_size,
            "stuck": stuck,
        }
        for name, value in values.items():
            object.__setattr__(self, name, _as_numbers(name, value))
        if isinstance(delay, bool) or not isinstance(delay, int) or not 0 <= delay <= MAX_DELAY:
            raise UserError(f"sensors: delay is {delay!r}, but must be a whole number of control periods, 0 to 100.")
        self.delay = delay

    def for_entries(self, names: tuple[str, ...]) -> "Sensors":
        """The same with one value per measured entry; `UserError` where a field does not fit the robot."""
        spread = {}
        for name in ENTRY_FIELDS:
            value = np.asarray(getattr(self, name))
            if value.ndim > 1 or (value.ndim == 1 and len(value) != len(names)):
                raise UserError(
                    f"sensors: {name} has the shape {value.shape}, but the robot measures {len(names)} values "
                    f"({', '.join(names)}): give one number, or one per value."
                )
            spread[name] = np.broadcast_to(value, (len(names),)).astype(np.float32)
        return Sensors(**spread, delay=self.delay)

    def with_stuck(self, *entries: int) -> "Sensors":
        """The same with these entries stuck, and no others; nothing is recompiled."""
        flags = np.zeros(np.shape(self.noise), np.float32)
        flags[list(entries)] = 1.0
        return eqx.tree_at(lambda sensors: sensors.stuck, self, jnp.asarray(flags))

    def as_numpy(self) -> "Sensors":
        """The same with numpy arrays, for a robot that is not compiled."""
        return jax.tree.map(np.asarray, self)

    def start(self, true: Any) -> SensorState:
        """The sensors of a machine that has been standing like this for a long time."""
        xp = namespace(true)
        return SensorState(true, xp.broadcast_to(true, (1 + self.delay, *true.shape)), true)

    def advance(self, state: SensorState, true: Any, jitter: Any) -> SensorState:
        """One control period later. `jitter` is standard normal, `(measured,)`."""
        xp = namespace(true)
        sampled = true + xp.clip(self.jitter * jitter, -1.0, 1.0) * (true - state.previous)
        filtered = self.lag * state.history[0] + (1.0 - self.lag) * sampled
        history = xp.concat([filtered[None], state.history[: self.delay]])
        shown = xp.where(self.stuck > 0, state.shown, history[self.delay])
        return SensorState(true, history, shown)

    def read(self, state: SensorState, draws: SensorDraws) -> Any:
        """The current measurement."""
        xp = namespace(state.shown)
        value = state.shown + self.noise * draws.normal
        step = xp.where(self.resolution > 0, self.resolution, 1.0)
        value = xp.where(self.resolution > 0, xp.round(value / step) * step, value)
        outlier = xp.where(draws.uniform < self.outlier_share, draws.sign * self.outlier_size, 0.0)
        return xp.where(self.stuck > 0, state.shown, value + outlier)


MAX_DELAY = 100
"""In control periods; more is a slip of the finger."""

ENTRY_FIELDS = ("noise", "resolution", "lag", "jitter", "outlier_share", "outlier_size", "stuck")
"""Fields of `Sensors` that may have a value per measured entry."""

_BOUNDS = {"lag": 1.0, "outlier_share": 1.0, "jitter": 1.0, "stuck": 1.0}


def _as_numbers(name: str, value: Any) -> Any:
    if isinstance(value, jax.Array):  # traced, or checked before
        return value
    try:
        array = np.asarray(value, np.float32)
    except (TypeError, ValueError):
        raise UserError(f"sensors: {name} is {value!r}, but must be a number, or one per measured value.") from None
    high = _BOUNDS.get(name, np.inf)
    if not (np.isfinite(array).all() and (array >= 0).all() and (array <= high).all()):
        wanted = "zero or positive" if high == np.inf else f"between 0 and {high:g}"
        raise UserError(f"sensors: {name} is {value!r}, but must be {wanted}.")
    return jnp.asarray(array)


class SensedPlant(AbstractWrapper):
    """A plant seen through sensors. `measure` is what they show, `truth` what exact ones would."""

    sensors: Sensors

    def reset(self, position: Float[Array, " positions"]) -> Any:
        """The plant at rest; its sensors have settled."""
        state = self.plant.reset(position)
        return state, self.sensors.start(self.plant.truth(state))

    def step(self, state: Any, command: Float[Array, " commands"], *, key: PRNGKeyArray) -> Any:
        """One control period later."""
        before, sensed = state
        plant_key, jitter_key = jax.random.split(key)
        after = self.plant.step(before, command, key=plant_key)
        true = self.plant.truth(after)
        return after, self.sensors.advance(sensed, true, jax.random.normal(jitter_key, true.shape, true.dtype))

    def measure(self, state: Any, *, key: PRNGKeyArray) -> Float[Array, " measured"]:
        """The measurement."""
        shape, dtype = state[1].shown.shape, state[1].shown.dtype
        normal_key, outlier_key, sign_key = jax.random.split(key, 3)
        draws = SensorDraws(
            jax.random.normal(normal_key, shape, dtype),
            jax.random.uniform(outlier_key, shape, dtype),
            jax.random.rademacher(sign_key, shape, dtype),
        )
        return self.sensors.read(state[1], draws)

    def truth(self, state: Any) -> Float[Array, " measured"]:
        """The measurement of exact sensors."""
        return self.plant.truth(state[0])

    def with_payload(self, kg: float) -> "SensedPlant":
        """The same with another load."""
        return eqx.tree_at(lambda sensed: sensed.plant, self, self.plant.with_payload(kg))


def draw_reading(rng: np.random.Generator, size: int) -> SensorDraws:
    """The random part of one reading, for numpy."""
    return SensorDraws(
        rng.standard_normal(size, np.float32),
        rng.random(size, np.float32),
        np.where(rng.random(size) < 0.5, -1.0, 1.0).astype(np.float32),
    )


def sense(plant: AbstractPlant, sensors: Sensors | None) -> AbstractPlant:
    """`plant` behind these sensors; itself where they are exact."""
    return plant if sensors is None else SensedPlant(plant, sensors)
