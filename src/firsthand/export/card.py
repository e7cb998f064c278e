"""The card that goes with an exported policy: what it is, what it was trained on and how well it does."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from firsthand_onboard import ControlSpec
from firsthand_onboard.base_control import BaseControl, kind_of
from firsthand_onboard.numpy_observer import Observer, observer_arrays, observer_digest
from firsthand_onboard.policy import Layer
from firsthand_onboard.policy_file import policy_to_bytes

from ..units import METRES, NO_UNIT, unit_of
from .accuracy import observer_tolerance, tolerance


@dataclass(frozen=True)
class ModelCard:
    """Where a policy comes from, what it reached, and what it expects."""

    robot: str
    """The robot's name in the specification."""
    learned_on: str
    """Which robot it was learned on: a simulated one, a learned simulator, a machine."""
    run: str
    """The run's folder."""
    episode: int
    """The episode that it ran on the robot."""
    tracking_error: float | None
    """Mean tracking error of that episode, on random references."""
    period_s: float
    """The rate at which the policy must be called."""
    measured: tuple[str, ...]
    """Names of the measurements, in order."""
    commands: tuple[str, ...]
    """Names of the commands, in order."""
    command_low: tuple[float, ...]
    """Lowest commands."""
    command_high: tuple[float, ...]
    """Highest commands."""
    preview: tuple[int, ...]
    """How many steps ahead the reference is looked at, besides now."""
    outputs: int
    """Coordinates of the tracked output."""
    sha256: str
    """Of specification, weights and observer as safetensors."""
    spec_sha256: str
    """Of the control specification alone."""
    tolerance: float
    """How far an export may be from the policy in double precision, in half ranges of the command."""
    angles: tuple[str, ...] = ()
    """Measurements that are counted on where an angle would jump at ±π."""
    unit: str = METRES.name
    """Unit of the tracked output."""
    base: str = ""
    """The kind of controller that the policy runs on top of; empty where there is none."""
    neutral: tuple[float, ...] = ()
    """The command that leaves the robot alone."""
    measured_units: tuple[str, ...] = ()
    """Units of what is measured; empty where they are not declared."""
    command_units: tuple[str, ...] = ()
    """Units of the commands, likewise."""
    output_names: tuple[str, ...] = ()
    """Names of the tracked output's coordinates."""
    cost: float | None = None
    """Mean cost of a step of that episode, where that is what policies are judged by."""
    observer_sha256: str = ""
    """Of the observer alone; empty where there is none, and the policy sees the measurements themselves."""
    observer_max_missing: int = 0
    """Steps that the observer predicts a missing measurement through."""
    observer_restart_after: int = 0
    """An entry of the estimate restarts from its measurement after as many clipped innovations in a row."""
    observer_tolerance: float = 0.0
    """How far a step of an exported observer may be from double precision, in change scales of the measurement."""

    @staticmethod
    def of(
        spec: ControlSpec,
        layers: Sequence[Layer],
        *,
        run: str,
        episode: int,
        tracking_error: float | None,
        unit: str = METRES.name,
        cost: float | None = None,
        learned_on: str | None = None,
        angles: Sequence[int] = (),
        observer: Observer | None = None,
        control: BaseControl | None = None,
    ) -> "ModelCard":
        """The card of a policy. `angles` are entries of the measurement."""
        observed: dict[str, Any] = {}
        if observer is not None:
            observed = {
                "observer_sha256": observer_digest(observer_arrays(observer)),
                "observer_max_missing": observer.settings.max_missing,
                "observer_restart_after": observer.settings.restart_after,
                "observer_tolerance": observer_tolerance(spec, observer),
            }
        return ModelCard(
            robot=spec.robot,
            learned_on=learned_on or spec.robot,
            run=run,
            episode=episode,
            tracking_error=tracking_error,
            period_s=spec.period_s,
            measured=spec.layout.measured,
            commands=spec.layout.commands,
            command_low=spec.limits.command_low,
            command_high=spec.limits.command_high,
            preview=spec.preview,
            outputs=spec.num_outputs,
            sha256=hashlib.sha256(policy_to_bytes(spec, layers, observer, control)).hexdigest(),
            spec_sha256=spec.digest(),
            tolerance=tolerance(spec, layers, control),
            base="" if control is None else kind_of(control.base),
            angles=tuple(spec.layout.measured[i] for i in angles),
            unit=unit,
            neutral=spec.neutral,
            measured_units=spec.layout.measured_units,
            command_units=spec.layout.command_units,
            output_names=spec.output_names,
            cost=cost,
            **observed,
        )

    @property
    def short_id(self) -> str:
        """The start of `sha256`, as a number that a C preprocessor can compare."""
        return f"0x{self.sha256[:12]}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The card as text, a line each: names may come from anybody and stay on their line."""
        return ["".join(c if c.isprintable() else " " for c in line) for line in self._lines()]

    def _lines(self) -> list[str]:
        reached = "unknown" if self.tracking_error is None else unit_of(self.unit).with_unit(self.tracking_error)
        names = _with_units(self.commands, self.command_units)
        limits = zip(names, self.command_low, self.command_high, self.neutral, strict=True)
        learned = "" if self.learned_on == self.robot else f", learned on {self.learned_on}"
        angles = (
            "Angles among them go on where they would jump at ±π, counted from the turn nearest to the middle of their"
        )
        return [
            f"Policy of {self.robot}{learned}, as it ran episode {self.episode} of {self.run}.",
            f"Mean tracking error of that episode, on random references: {reached}."
            if self.cost is None
            else f"Mean cost of a step in that episode: {NO_UNIT.text(self.cost)}.",
            f"Control period: {self.period_s:g} s. Nothing here checks limits of joints or of speed.",
            f"Measured: {', '.join(_with_units(self.measured, self.measured_units))}.",
            *([f"{angles} limits: {', '.join(self.angles)}."] if self.angles else []),
            "Commands: "
            + ", ".join(f"{name} {low:g} to {high:g}, neutral {rest:g}" for name, low, high, rest in limits)
            + ".",
            f"Reference: {', '.join(self.output_names)}, now and {', '.join(map(str, self.preview))} steps ahead.",
            f"Single precision, as in C and ONNX: within {self.tolerance:.2g} of half a command range of double.",
            *([f"On top of a base ({self.base}), which is part of it."] if self.base else []),
            *self._about_the_observer(),
            f"SHA-256 of specification and weights: {self.sha256}.",
        ]

    def _about_the_observer(self) -> list[str]:
        if not self.observer_sha256:
            return ["No observer: the policy sees the measurements themselves."]
        lasts = f"{self.observer_max_missing} steps ({self.observer_max_missing * self.period_s:g} s)"
        return [
            "Observer: the policy sees an estimate from a model and the measurements; it was trained on that.",
            f"A missing measurement is predicted for up to {lasts}; after that the robot must be stopped.",
            f"An entry restarts from its measurement after {self.observer_restart_after} in a row that do not fit.",
            f"Observer in single precision: within {self.observer_tolerance:.2g} change scales of double in each step.",
            f"SHA-256 of the observer: {self.observer_sha256}.",
        ]


def _with_units(names: Sequence[str], units: Sequence[str]) -> list[str]:
    return [f"{name} ({unit})" if unit else name for name, unit in zip(names, units or [""] * len(names), strict=True)]
