"""Evaluate a policy on the task's fixed references."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import next_state

from ..models import Controller, Policy
from ..robots.base import AbstractRobot, EpisodeRecord
from ..tasks.base import EvaluationReference, Task
from .metrics import TrackingMetrics, mean_absolute_errors, seen_steps, tracking_metrics


@dataclass(frozen=True)
class Evaluation:
    """The metrics, per reference and together."""

    references: tuple[EvaluationReference, ...]
    """The references."""
    records: tuple[EpisodeRecord, ...]
    """The robot's trajectories, in the same order."""
    metrics: tuple[TrackingMetrics, ...]
    """The metrics of each, in the same order."""
    overall: TrackingMetrics
    """The metrics over all steps of all references."""
    costs: tuple[float, ...] = ()
    """The cost per step of each where that is what policies are judged by; empty where it is the tracking error."""
    each_output: Mapping[str, float] = field(default_factory=dict)
    """The mean absolute error of each tracked output over all steps of all references, by its name."""

    @staticmethod
    def of(
        spec: ControlSpec,
        references: tuple[EvaluationReference, ...],
        records: tuple[EpisodeRecord, ...],
        costs: tuple[float, ...] = (),
    ) -> "Evaluation":
        """The evaluation that follows from what the robot did."""
        metrics = tuple(tracking_metrics(spec, (record,)) for record in records)
        each_output = mean_absolute_errors(spec, records)
        return Evaluation(references, records, metrics, tracking_metrics(spec, records), costs, each_output)

    @property
    def cost(self) -> float:
        """The cost per step over all references, where it is known; otherwise NaN."""
        steps = [int(record.valid.sum()) for record in self.records]
        known = self.costs and sum(steps)
        return float(np.average(self.costs, weights=steps)) if known else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """The overall metrics, the error of `each_output`, and the same metrics per reference under `references`."""
        each = {r.name: m.as_dict() for r, m in zip(self.references, self.metrics, strict=True)}
        together = {**self.overall.as_dict(), "each_output": dict(self.each_output), "references": each}
        if not self.costs:
            return together
        for name, cost in zip(each, self.costs, strict=True):
            each[name]["cost"] = cost
        return {"cost": self.cost, **together}

    def notes(self) -> list[str]:
        """A sentence for each reference that was not followed to its end: its errors say nothing about the rest."""
        notes = []
        for reference, record in zip(self.references, self.records, strict=True):
            done, steps = int(seen_steps(record).sum()), record.valid.size
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
    records = robot.follow(policy, references)
    costs = () if task.cost.goal.tracks else tuple(cost_per_step(task, record) for record in records)
    return Evaluation.of(task.spec, references, records, costs)


def cost_per_step(task: Task, record: EpisodeRecord) -> float:
    """The mean of the task's cost over the steps that happened; NaN where none did."""
    spec, valid = task.spec, seen_steps(record)
    if not valid.any():
        return float("nan")
    steps, states = valid.shape[1], [record.registers(spec.layout)]
    for k in range(steps - 1):
        states.append(next_state(spec.layout, states[-1], record.commands[:, k], record.measured[:, k + 1]))
    given = (np.nan_to_num(np.stack(states, axis=1)), record.commands, record.references[:, :steps])
    costs = jax.jit(jax.vmap(jax.vmap(task.cost)))(*(jnp.asarray(part, jnp.float32) for part in given))
    return float(np.asarray(costs)[valid].mean())
