"""Evaluate a policy on the task's fixed references."""

from dataclasses import dataclass
from typing import Any

from firsthand_onboard import ControlSpec

from ..models import Controller, Policy
from ..robots.base import AbstractRobot, EpisodeRecord
from ..tasks.base import EvaluationReference
from .metrics import TrackingMetrics, seen, tracking_metrics


@dataclass(frozen=True)
class Evaluation:
    """What came out, per reference and together."""

    references: tuple[EvaluationReference, ...]
    """What was followed."""
    records: tuple[EpisodeRecord, ...]
    """What the robot did, in the same order."""
    metrics: tuple[TrackingMetrics, ...]
    """The metrics of each, in the same order."""
    overall: TrackingMetrics
    """The metrics over all steps of all references."""

    @staticmethod
    def of(
        spec: ControlSpec, references: tuple[EvaluationReference, ...], records: tuple[EpisodeRecord, ...]
    ) -> "Evaluation":
        """The evaluation that follows from what the robot did."""
        metrics = tuple(tracking_metrics(spec, (record,)) for record in records)
        return Evaluation(references, records, metrics, tracking_metrics(spec, records))

    def as_dict(self) -> dict[str, Any]:
        """The overall metrics, and the same per reference under `references`."""
        each = {r.name: m.as_dict() for r, m in zip(self.references, self.metrics, strict=True)}
        return {**self.overall.as_dict(), "references": each}

    def notes(self) -> list[str]:
        """A sentence for each reference that was not followed to its end: its errors say nothing about the rest."""
        notes = []
        for reference, record in zip(self.references, self.records, strict=True):
            done, steps = int(seen(record).sum()), record.valid.size
            if done < steps:
                notes.append(f"{reference.name}: only {done} of {steps} steps were followed.")
        return notes


def can_go_back(robot: AbstractRobot) -> bool:
    """Whether a policy that was bad can be run again without harm: not on a real machine."""
    return not robot.hardware or robot.can_reset


def evaluate(robot: AbstractRobot, policy: Policy | Controller, *, speed: float | None = None) -> Evaluation:
    """Follow every evaluation reference from rest; `speed` is the task's own unless given."""
    task = robot.task
    references = task.evaluation(task.evaluation_speed if speed is None else speed)
    return Evaluation.of(task.spec, references, robot.follow(policy, references))
