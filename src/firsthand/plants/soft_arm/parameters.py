"""The numbers of the soft arm, and what makes it an imperfect one. S: read in a public source, E: our estimate."""

import math
from dataclasses import dataclass, fields

from firsthand.plants.switches import Switches

PERIOD_S = 0.05
"""Control period (E)."""
SEGMENTS = 3
GRAVITY = 9.81
MAX_PAYLOAD_KG = 0.2
"""Tip load under which the arm still stands upright when it has crept; at about 0.23 kg it buckles."""

Three = tuple[float, float, float]


@dataclass(frozen=True)
class ArmEffects(Switches):
    """Why a real arm does not repeat itself. All are on, unless told otherwise."""

    marker: bool = True
    """The markers sit beside the centre line: what is seen turns with the end plates."""
    friction: bool = True
    """The cables' friction differs from run to run, and wanders."""
    pretension: bool = True
    """The cables' pretension drifts."""


@dataclass(frozen=True)
class SoftArmParameters:
    """Numbers of the arm. Tuples run over the segments from the base up."""

    length_m: float = 0.3
    """Length of a segment (E)."""
    segment_kg: float = 0.11
    """Mass of a segment without its end plate (E)."""
    plate_kg: float = 0.05
    """Mass of an end plate (E)."""
    radius_m: float = 0.03
    """Radius of the helicoids, and how far the cables run from the centre line (S)."""
    wall_m: float = 0.012
    """Radial width of the helicoid's trimmed wall (S)."""
    thickness_m: float = 0.0037
    """Thickness of the helicoid's wall (E): more than the 2 to 3 mm of the similar, shorter arm."""
    offsets_deg: Three = (0.0, 60.0, 150.0)
    """Angle of each segment's first cable; the other two follow at 120° and 240° (S)."""
    cable_stiffness: float = 590.0
    """Tension per stretch of a cable with its spool and terminations, N/m (E)."""
    pretension_n: float = 10.0
    """Tension of every cable when the arm stands straight (E)."""
    slack_rounding_n: float = 1.0
    """Over how many N the corner of a cable that goes slack is rounded."""
    friction: float = 0.12
    """μ of the capstan equation (S: 0.10 to 0.20)."""
    base_wrap_rad: float = 0.05
    """How far a cable is wrapped around guides below the first segment (E)."""
    breakaway_m: float = 0.001
    """Slip over which the friction turns round (E): this is what makes a hysteresis of it."""
    damping_ratio: float = 0.4
    """ζ of every mode of the upright, empty arm without cable friction (E: 0.3 to 0.5)."""
    creep_share: float = 0.4
    """Share of the helicoid's own stiffness that relaxes with time (E)."""
    creep_s: float = 2.6
    """Time in which it relaxes, with the bend held (E)."""
    stop_rad: float = 1.0
    """Bend from which a segment stiffens because its turns touch each other (S: at most 57° in use)."""
    stop_stiffness: float = 20.0
    """How fast it stiffens, N m/rad⁵ (E)."""
    servo_s: float = 0.05
    """Time constant of a motor's position control (E)."""
    spool_speed: float = 0.15
    """Highest speed of a cable at its spool, m/s (E)."""
    travel_m: Three = (0.020, 0.027, 0.036)
    """Cable drawn in at command 1, for the three segments' cables (E)."""
    delay_s: float = 0.01
    """Age of what the motion capture reports (E); whole integration steps."""

    # Effects
    markers_m: tuple[tuple[float, float], ...] = ((0.002, -0.001), (-0.001, 0.002), (0.003, 0.002))
    """How far each segment's marker sits beside the centre line, across the end plate (E)."""
    friction_spread: float = 0.3
    """Standard deviation of ln μ from cable to cable and run to run (E): 95 % lie between 0.54 and 1.8 × μ."""
    friction_s: float = 300.0
    """How slowly it wanders (E)."""
    pretension_spread: float = 0.03
    """Standard deviation of each cable's pretension, relative (E)."""
    pretension_s: float = 120.0
    """How slowly it drifts (E)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "markers_m":  # to any side
                continue
            for number in value if isinstance(value, tuple) else (value,):
                if not (math.isfinite(number) and number >= 0):
                    raise ValueError(f"{field.name} is {value}, but must be zero or a positive number")
        for name in ("length_m", "radius_m", "segment_kg", "cable_stiffness", "slack_rounding_n", "breakaway_m"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name} is 0, but must be positive")
        for name in ("creep_s", "servo_s", "spool_speed", "friction_s", "pretension_s"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name} is 0, but must be positive")
        if not self.creep_share < 1:
            raise ValueError(f"creep_share is {self.creep_share}, but must be below 1")

    @property
    def helicoid_stiffness(self) -> float:
        """Bending stiffness of one helicoid alone, N m/rad, by the published fit for trimmed helicoids (S)."""
        axial = 0.05 * (1e3 * self.thickness_m) ** 3.16 * 1e3
        return axial * self.radius_m**2 / (12.76 * (self.wall_m / self.radius_m) ** 3.42 + 1.58)
