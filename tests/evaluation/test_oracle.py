"""The oracle finds the best possible where that is known, and is found again only for the same question."""

import dataclasses

import numpy as np
import pytest

from firsthand.evaluation.oracle import (
    CHAINED,
    OracleBudget,
    OracleResult,
    cached_oracle,
    fingerprint,
    reference_pool,
    store_oracle,
    train_oracle,
)
from firsthand.plants.linear_quadratic import augmented_system, preview_policy_cost, solve_tracking
from firsthand.plants.probes import DelayedDoubleIntegrator, ScalarPlant
from firsthand.robots import SimulatedRobot
from firsthand.tasks import Task
from firsthand.tasks.base import EvaluationReference

LENGTH, CHANGE, LIMIT = 0.3, 5.0, 4.0


@pytest.fixture(scope="module")
def task(make_probe_task) -> Task:
    return make_probe_task(
        measured=1,
        command_memory=1,
        steps=20,
        preview=(1, 2, 3),
        command_limit=LIMIT,
        length_scale=LENGTH,
        change_weight=CHANGE,
    )


def test_the_oracle_reaches_the_known_optimum(task: Task) -> None:
    plant = ScalarPlant()
    policy, result = train_oracle(plant, task, OracleBudget(iterations=500, trajectories=10, starts=2, rate=2e-2))

    starts, references = reference_pool(task, 40, np.random.default_rng(123))
    held_out = tuple(
        EvaluationReference(str(i), points[: CHAINED * task.steps], start)
        for i, (start, points) in enumerate(zip(starts, references, strict=True))
    )
    system, weights = augmented_system(plant, 1), {"length_scale": LENGTH, "change_weight": CHANGE / LIMIT**2}
    reached, best, of_its_class, errors = [], [], [], []
    for reference, record in zip(held_out, SimulatedRobot(plant, task).follow(policy, held_out), strict=True):
        error = record.measured[0, :-1] - reference.points
        change = np.diff(record.commands[0], axis=0, prepend=0.0) / LIMIT
        reached.append(np.mean(error**2) / LENGTH**2 + CHANGE * np.mean(change**2))
        errors.append(np.mean(np.abs(error)))
        target, start = reference.points.astype(float), np.array([reference.start[0], 0.0])
        best.append(solve_tracking(system, target, **weights).cost(start))
        of_its_class.append(preview_policy_cost(system, target, start, preview=3, **weights))
    # Nothing beats the controller that knows the whole reference. One gain for all steps and a preview of three points,
    # which is what the policy class can do, costs a tenth more; the oracle must come close to that.
    assert np.mean(best) <= np.mean(reached) <= 1.15 * np.mean(best)
    assert np.mean(reached) <= 1.04 * np.mean(of_its_class)
    # What it reports is what it does, on references like these.
    assert result.random_error == pytest.approx(np.mean(errors), rel=0.2)
    assert set(result.shapes) == {"stay", "away"}


def test_an_oracle_is_found_again_only_for_the_same_question(task: Task, make_probe_task, tmp_path) -> None:
    plant, budget = ScalarPlant(), OracleBudget()
    result = OracleResult(random_error=0.01, shapes_error=0.02, shapes={"stay": 0.0, "away": 0.03})
    assert cached_oracle(plant, task, tmp_path, budget) is None
    path = store_oracle(result, plant, task, tmp_path / "new folder", budget)
    assert path.parent == tmp_path / "new folder"
    assert cached_oracle(ScalarPlant(), task, tmp_path / "new folder", OracleBudget()) == result

    others = [
        (ScalarPlant(a=0.99), task, budget),
        (ScalarPlant(b=0.11), task, budget),
        (ScalarPlant(period=0.2), task, budget),
        (plant, dataclasses.replace(task, cost=dataclasses.replace(task.cost, change_weight=0.06)), budget),
        (plant, task, dataclasses.replace(budget, iterations=10)),
    ]
    for other in others:
        assert cached_oracle(other[0], other[1], tmp_path / "new folder", other[2]) is None
    names = [fingerprint(*question) for question in [*others, (plant, task, budget)]]
    names += [fingerprint(DelayedDoubleIntegrator(delay=delay), task, budget) for delay in (1, 2)]
    assert len(set(names)) == len(names)


def test_an_oracle_belongs_to_its_evaluation_references(task: Task) -> None:
    faster = dataclasses.replace(task, evaluation_speed=2 * task.evaluation_speed)
    assert fingerprint(ScalarPlant(), faster, OracleBudget()) != fingerprint(ScalarPlant(), task, OracleBudget())


def test_a_damaged_entry_of_the_cache_is_not_used(task: Task, tmp_path) -> None:
    result = OracleResult(0.01, 0.02, {})
    path = store_oracle(result, ScalarPlant(), task, tmp_path)
    for text in ("", "{", "[]", '{"random_error": 1}'):
        path.write_text(text)
        assert cached_oracle(ScalarPlant(), task, tmp_path) is None
