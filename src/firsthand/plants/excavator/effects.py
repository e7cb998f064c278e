"""Effects of the realistic excavator, which can be switched off one by one, and their sizes."""

from dataclasses import dataclass, fields

from firsthand.plants.excavator.parameters import BAR, PERIOD_S
from firsthand.plants.switches import Switches


@dataclass(frozen=True)
class Effects(Switches):
    """Which effects are on. All of them are, unless told otherwise."""

    power: bool = True
    """The pump's power is limited: high pressure costs flow."""
    droop: bool = True
    """Valves let less oil through against a higher load."""
    pump: bool = True
    """Pump and load-sensing line take time; without this the pump follows at once, with all its flow."""
    hysteresis: bool = True
    """The spool lags behind its command by what it remembers."""
    deadband: bool = True
    """The dead band drifts slowly."""
    friction: bool = True
    """Cylinders stick: friction grows with the load, and is larger at low speed."""
    noise: bool = True
    """Flows fluctuate."""
    oil: bool = True
    """The oil starts cold and warms up over the day."""
    engine: bool = True
    """The engine's speed wanders."""
    swing: bool = True
    """The payload hangs in a gripper and swings."""
    base: bool = True
    """The machine pitches on its wheels."""


EFFECT_NAMES = Effects.names()
NO_EFFECTS = Effects.none()
"""With all effects off, the two-chamber model remains."""


@dataclass(frozen=True)
class EffectSizes:
    """How large each effect is. S: a public source, E: our estimate; docs/plants.md has the list."""

    # Pump
    power: float = 95e3
    """Hydraulic power that the engine gives the pump, W (S/E: 90 to 100 kW)."""
    pump_s: float = 0.15
    """Time constant of the pump's swash plate going out (S/E: 0.1 to 0.2 s)."""
    destroke_s: float = 0.06
    """The same coming back, also for the power limit (E: a pump comes back faster than it goes out)."""
    stroke_s: float = 0.3
    """Its full stroke takes at least this long (S/E)."""
    line_s: float = 0.05
    """Time constant of the load-sensing line (S/E)."""
    prompt_s: float = 0.02
    """Time constant of a pump without lag: what the torque limiter needs to settle."""
    margin: float = 21 * BAR
    """Pressure that the pump keeps above the highest load it senses, Pa (S)."""
    standby: float = 0.03
    """Share of its flow that a pump has without any demand (E)."""

    # Valves
    droop: float = 0.10
    """Share of the flow that is lost (E: 5 to 15 %) …"""
    droop_over: float = 200 * BAR
    """… over this much load pressure, Pa."""
    hysteresis: float = 0.04
    """Width of the loop between command and spool, of the stroke (E: 2 to 8 %)."""
    deadband: float = 0.01
    """Standard deviation of the dead band's drift, of the stroke: 95 % lie within ± 2 % (E)."""
    deadband_s: float = 600.0
    """How slowly it drifts (E)."""
    least_deadband: float = 0.005
    """The remaining dead band, as a share of the stroke."""
    noise: float = 0.015
    """Standard deviation of the flow through each valve, relative (E: 1 to 2 %)."""
    noise_s: float = 0.2
    """Correlation time of this (E)."""

    # Cylinders
    friction: float = 0.05
    """Friction over the cylinder's force; with the seals' constant part 7 to 9 % (S: losses of 10 to 30 % in all)."""
    stribeck: float = 1.45
    """Friction at rest over friction in motion; the largest that is met is 1.35 × (S: 1.3 to 1.5)."""
    stribeck_speed: float = 0.02
    """Cylinder speed over which this fades, m/s (E)."""
    stick_speed: float = 0.003
    """Cylinder speed over which friction turns round, m/s: what makes it smooth (E)."""

    # Engine
    engine: float = 0.015
    """Standard deviation of the engine's speed, relative: 95 % lie within ± 3 % (E)."""
    engine_s: float = 30.0
    """How slowly it wanders (E)."""

    # Gripper
    swing_hz: float = 0.5
    """Frequency at which the payload swings (E)."""
    swing_damping: float = 0.05
    """Its damping ratio (E)."""

    # Base
    base_hz: float = 1.9
    """Pitch frequency with the arm locked in the reference pose (E: 1 to 2 Hz)."""
    base_damping: float = 0.1
    """Its damping ratio (E)."""
    base_inertia: float = 35e3
    """Pitch inertia of the machine without its arm, kg m² (E: 9.5 t)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{field.name} is {value}, but must be zero or positive.")
        for name in ("pump_s", "destroke_s", "stroke_s", "line_s", "prompt_s", "noise_s", "engine_s", "deadband_s"):
            if getattr(self, name) < PERIOD_S / 8:
                raise ValueError(f"{name} is {getattr(self, name)} s, but must be at least {PERIOD_S / 8} s.")
