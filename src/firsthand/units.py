"""How a tracked output is printed: metres as centimetres, anything else in its own unit."""

import math
from dataclasses import dataclass

from firsthand_onboard import ControlSpec

UNKNOWN = "–"
MIXED = "scales"
"""The unit of errors where tracked outputs have different units: each is counted in its own scale."""


@dataclass(frozen=True)
class Unit:
    """The unit of a tracked output, as files have it and as people read it."""

    name: str
    """In files: m, rad."""
    shown: str
    """In tables and figures: cm, rad."""
    factor: float
    """From the first to the second."""

    def of(self, value: float) -> float:
        """A value as it is shown."""
        return self.factor * value

    def text(self, value: float) -> str:
        """A value as it is shown, with about three digits, without the unit; a dash for what is not known."""
        return number(self.of(value), self.digits(value))

    def digits(self, value: float) -> int:
        """Digits after the point for about three in all, and at least two: a small error can still be seen to fall."""
        size = abs(self.of(value))
        if not math.isfinite(size) or size >= 1000:
            return 0
        if size >= 0.1 or size == 0:
            return 1 if size >= 10 else 2 if size >= 1 or self.factor > 1 else 3
        return 3 if size >= 0.01 else 4

    def with_unit(self, value: float) -> str:
        """`4.20 cm`; the number alone where there is no unit."""
        return f"{self.text(value)} {self.shown}".rstrip()


METRES = Unit("m", "cm", 100.0)


NO_UNIT = Unit("", "", 1.0)


@dataclass(frozen=True)
class Score:
    """The number that policies of a robot are judged by, the smaller the better."""

    key: str
    """Its field in metrics.jsonl."""
    name: str
    """Its name for people."""
    short: str
    """Its short name."""
    unit: Unit
    """Its unit."""

    @property
    def label(self) -> str:
        """For an axis."""
        return f"{self.name} ({self.unit.shown})" if self.unit.shown else self.name


def score_of(tracks: bool, unit: str) -> Score:
    """The tracking error where something is followed; otherwise the cost per step."""
    if tracks:
        return Score("tracking_error", "tracking error", "error", unit_of(unit))
    return Score("cost", "cost per step", "cost", NO_UNIT)


TRACKING = Score("tracking_error", "tracking error", "error", METRES)


def error_unit(spec: ControlSpec) -> str:
    """The unit of tracking errors as the specification declares it; empty where it does not."""
    return MIXED if spec.has_mixed_units else "".join(set(spec.output_units))


def unit_of(name: str) -> Unit:
    """The unit that a task or a run names."""
    return METRES if name == "m" else Unit(name, name, 1.0)


def number(value: float, digits: int = 2) -> str:
    """A number for people; a dash for what is not known, powers of ten for what is huge or tiny."""
    if not math.isfinite(value):
        return UNKNOWN
    if value != 0 and not 0.5 * 10.0**-digits <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:.{digits}f}"


def three_digits(value: float) -> str:
    """A number with about three digits in all, at most four of them after the point."""
    size = abs(value)
    return number(value, 4 if not 0 < size < math.inf else min(max(2 - math.floor(math.log10(size)), 0), 4))


def duration(seconds: float) -> str:
    """Time for people: 50 s, 8.3 min, 2.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.2f} h"
