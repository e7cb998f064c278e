"""The numbers of the machine that are not geometry."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

BAR = 1e5
LITRE_PER_MINUTE = 1e-3 / 60

PERIOD_S = 0.04
"""Control period (S)."""

PAYLOADS = {"empty": 0.0, "small": 300.0, "medium": 600.0, "large": 900.0}
"""kg at the tool (E)."""

Four = tuple[float, float, float, float]


@dataclass(frozen=True)
class ExcavatorParameters:
    """Numbers of the machine. Tuples run over boom, dipper, telescope, pitch.

    Fields that end in `_plus` hold for u > 0, those in `_minus` for u < 0. All are estimates (E), chosen so that
    `characterize` finds the measured responses.
    """

    # Cylinders
    bore_m: Four = (0.140, 0.125, 0.070, 0.100)
    """Piston diameters."""
    rod_m: Four = (0.090, 0.070, 0.050, 0.060)
    """Rod diameters."""
    extends_plus: tuple[bool, bool, bool, bool] = (True, True, True, False)
    """Whether u > 0 lengthens the cylinder."""

    # From command to spool
    dead_time_s: Four = (0.062, 0.05, 0.076, 0.06)
    """Before a valve sees a new command, at most three control periods."""
    open_s: Four = (0.22, 0.13, 0.14, 0.08)
    """Time constant of a spool that moves away from its centre a little."""
    slew_plus: Four = (1.68, 1.2, 1.5, 1.4)
    """The fastest it moves away from its centre, strokes per second: a large step opens more slowly."""
    slew_minus: Four = (1.34, 1.2, 3.9, 1.28)
    close_s: Four = (0.125, 0.12, 0.12, 0.105)
    """Time constant of a spool that returns."""

    # From spool to flow
    speed_plus: Four = (0.176, 0.32, 0.525, 0.37)
    """Cylinder speed in m/s at full stroke with oil enough."""
    speed_minus: Four = (0.225, 0.3, 0.208, 0.327)
    dead_band: Four = (0.042, 0.05, 0.068, 0.05)
    """Overlap of the spool, as a fraction of its stroke."""
    knee_plus: Four = (0.155, 0.15, 0.15, 0.15)
    """Stroke over which the convex start of the gain turns into a line."""
    knee_minus: Four = (0.18, 0.15, 0.15, 0.15)
    saturation_plus: Four = (1.95, 1.95, 1.95, 1.95)
    """How strongly the gain flattens toward full stroke; 0 would be not at all."""
    saturation_minus: Four = (2.4, 2.4, 2.4, 2.4)

    # Pump, and what a consumer asks of it
    pump_flow: float = 233 * LITRE_PER_MINUTE
    """m³/s."""
    relief: float = 350 * BAR
    """Pa."""
    threshold_plus: Four = (20 * BAR, 97 * BAR, 137 * BAR, 138 * BAR)
    """Supply pressure beyond the load's at which oil begins to flow, Pa: friction, counterbalance valve, return."""
    threshold_minus: Four = (10 * BAR, 8 * BAR, 132 * BAR, 122 * BAR)
    ramp_plus: Four = (52 * BAR, 114 * BAR, 57 * BAR, 87 * BAR)
    """Further supply pressure at which the valve delivers all that is asked, Pa: load-sensing margin, hose losses."""
    ramp_minus: Four = (20 * BAR, 91 * BAR, 32 * BAR, 58 * BAR)

    # Oil column
    mode_hz: Four = (2.0, 3.5, 15.0, 7.0)
    """Frequency at the reference pose with the empty tool."""
    mode_damping: Four = (0.55, 0.45, 0.33, 0.4)
    """Damping ratio there."""

    cushion: Four = (0.06, 0.08, 0.05, 0.10)
    """Stretch before an end stop over which the flow is throttled, rad or m."""

    # Oil temperature, relative to the one at which all of the above holds
    nominal_oil_c: float = 50.0
    gain_per_c: float = 0.004
    """Warmer oil flows more easily through the valves: relative change of flow."""
    dead_band_per_c: float = -0.005
    """Relative change of the dead band."""
    damping_per_c: float = -0.012
    """Relative change of the mode's damping."""

    def __post_init__(self) -> None:
        if not all(0 < d <= 3 * PERIOD_S for d in self.dead_time_s):
            raise ValueError(f"dead_time_s is {self.dead_time_s}; each must lie in (0, {3 * PERIOD_S:.2f}] s.")
        if not all(0 < r < b for r, b in zip(self.rod_m, self.bore_m, strict=True)):
            raise ValueError(f"rod_m is {self.rod_m}; each must be thinner than its bore, {self.bore_m}.")


VARIED = (
    *("dead_time_s", "open_s", "close_s", "slew_plus", "slew_minus", "speed_plus", "speed_minus", "dead_band"),
    *("knee_plus", "knee_minus", "saturation_plus", "saturation_minus"),
    *("threshold_plus", "threshold_minus", "ramp_plus", "ramp_minus", "pump_flow"),
)
"""Parameters that differ between machines of one kind. Their geometry does not."""


def vary_parameters(parameters: ExcavatorParameters, share: float, seed: int) -> ExcavatorParameters:
    """Another machine of the kind: every number of valves, pump and pressures is off by `share`, up or down."""
    rng = np.random.default_rng([seed, 0x5A4])

    def vary(value):
        signs = rng.choice([-1.0, 1.0], size=np.shape(value))
        varied = np.asarray(value) * (1 + share * signs)
        return tuple(varied.tolist()) if varied.ndim else float(varied)

    return replace(parameters, **{name: vary(getattr(parameters, name)) for name in VARIED})


PRESSURE_MODEL = replace(
    ExcavatorParameters(),
    dead_time_s=(0.053, 0.046, 0.049, 0.056),
    open_s=(0.26, 0.21, 0.16, 0.08),
    slew_plus=(3.65, 1.35, 1.57, 1.68),
    slew_minus=(1.47, 1.14, 4.83, 1.19),
    close_s=(0.099, 0.109, 0.12, 0.12),
    speed_plus=(0.134, 0.357, 0.528, 0.398),
    speed_minus=(0.227, 0.255, 0.193, 0.298),
    knee_plus=(0.132, 0.129, 0.169, 0.164),
    knee_minus=(0.221, 0.114, 0.163, 0.142),
    dead_band=(0.052, 0.049, 0.065, 0.058),
    threshold_plus=(12 * BAR, 74 * BAR, 108 * BAR, 101 * BAR),
    threshold_minus=(5 * BAR, 7 * BAR, 146 * BAR, 142 * BAR),
    ramp_plus=(55 * BAR, 90 * BAR, 36 * BAR, 89 * BAR),
    ramp_minus=(19 * BAR, 78 * BAR, 25 * BAR, 57 * BAR),
    saturation_plus=(1.95, 1.69, 1.71, 1.49),
    saturation_minus=(2.90, 3.21, 2.43, 2.88),
)
"""The same machine for the two-chamber model, which has friction, back pressure and inertia of its own."""

REALISTIC_MODEL = replace(
    ExcavatorParameters(),
    dead_time_s=(0.044, 0.033, 0.034, 0.045),
    open_s=(0.225, 0.172, 0.116, 0.075),
    slew_plus=(6.35, 1.64, 1.79, 1.47),
    slew_minus=(1.7, 2.36, 5.33, 1.51),
    close_s=(0.062, 0.112, 0.148, 0.0974),
    speed_plus=(0.135, 0.331, 0.524, 0.378),
    speed_minus=(0.247, 0.269, 0.192, 0.279),
    knee_plus=(0.172, 0.139, 0.165, 0.153),
    knee_minus=(0.173, 0.0924, 0.154, 0.132),
    dead_band=(0.0356, 0.0452, 0.0405, 0.0456),
    threshold_plus=(9.3 * BAR, 94.1 * BAR, 130.0 * BAR, 139.0 * BAR),
    threshold_minus=(4.7 * BAR, 6.8 * BAR, 130.4 * BAR, 112 * BAR),
    ramp_plus=(79.4 * BAR, 124.6 * BAR, 39.4 * BAR, 101.3 * BAR),
    ramp_minus=(22.1 * BAR, 39.2 * BAR, 31.2 * BAR, 53.4 * BAR),
    saturation_plus=(4.92, 1.58, 1.8, 1.54),
    saturation_minus=(1.32, 3.2, 2.1, 4.26),
)
"""The same machine with the effects of `Effects`: pump, line and friction take over a part of what valves do above."""


def piston_areas(p: ExcavatorParameters) -> tuple[np.ndarray, np.ndarray]:
    """Areas (bore side, rod side) in m²."""
    bore, rod = np.asarray(p.bore_m), np.asarray(p.rod_m)
    return np.pi / 4 * bore**2, np.pi / 4 * (bore**2 - rod**2)


def stroke_factors(p: ExcavatorParameters) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What filling for u > 0 and for u < 0 means: (area plus, area minus, cylinder sign plus, cylinder sign minus)."""
    bore, rod = piston_areas(p)
    extends = np.asarray(p.extends_plus)
    sign = np.where(extends, 1.0, -1.0)
    return np.where(extends, bore, rod), np.where(extends, rod, bore), sign, -sign


def oil_factors(temperature_c: Array, p: ExcavatorParameters) -> tuple[Array, Array, Array]:
    """Factors on (flow, dead band, damping) at this oil temperature; cut off 40 °C either side, where lines mislead."""
    off = jnp.clip(temperature_c - p.nominal_oil_c, -40.0, 40.0)
    return 1 + p.gain_per_c * off, 1 + p.dead_band_per_c * off, 1 + p.damping_per_c * off


def by_direction(plus: Array, for_plus, for_minus) -> Array:
    """Per joint, the first where the valve is open for u > 0, the second elsewhere.

    The jump is harmless: it happens inside the dead band, where nothing flows.
    """
    return jnp.where(plus, jnp.asarray(for_plus), jnp.asarray(for_minus))


def sigmoid(x: Array) -> Array:
    """Logistic function; by tanh, which neither overflows nor needs a division."""
    return 0.5 + 0.5 * jnp.tanh(0.5 * x)
