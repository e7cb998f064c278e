"""The metrics of table 1 against numbers worked by hand."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from firsthand.evaluation import Evaluation, evaluate, tracking_errors, tracking_metrics
from firsthand.models import Policy
from firsthand.plants.probes import ScalarPlant
from firsthand.robots import EpisodeRecord, SimulatedRobot
from firsthand.tasks import Task
from firsthand.tasks.base import EvaluationReference
from firsthand_onboard import SelectedOutput
from firsthand_onboard.toy import toy_spec


@pytest.fixture(scope="module")
def task(make_probe_task) -> Task:
    """One position in [-10, 10], a period of 0.1 s."""
    return make_probe_task(
        measured=1,
        command_memory=1,
        steps=4,
        preview=(1,),
        command_limit=1.0,
        length_scale=1.0,
        change_weight=0.01,
        trajectories=2,
    )


@pytest.fixture
def record() -> EpisodeRecord:
    """Two trajectories of four steps; the second was cut short after its third."""
    measured = np.array([[0.0, 0.1, 0.3, 0.6, 1.0], [2.0, 2.0, 9.96, 5.0, 5.0]], np.float32)
    references = np.array([[0.0, 0.2, 0.4, 0.6, 0.8], [2.0, 1.0, 9.96, 9.0, 9.0]], np.float32)
    commands = np.array([[0.0, 0.5, 0.5, -0.5], [1.0, 1.0, 0.0, 1.0]], np.float32)
    valid = np.ones((2, 4), bool)
    valid[1, 3] = False
    return EpisodeRecord(
        starts=np.zeros((2, 2), np.float32),
        measured=measured[..., None],
        commands=commands[..., None],
        references=references[..., None],
        free=np.ones((2, 4, 1), bool),
        valid=valid,
    )


def test_metrics_worked_by_hand(task: Task, record: EpisodeRecord) -> None:
    # Errors: 0, 0.1, 0.1, 0 and 0, 1, 0.
    np.testing.assert_allclose(tracking_errors(task.spec, record), [0, 0.1, 0.1, 0, 0, 1, 0], atol=1e-6)
    metrics = tracking_metrics(task.spec, (record,))
    assert metrics.mean_error == pytest.approx(1.2 / 7, abs=1e-6)
    assert metrics.max_error == pytest.approx(1.0)
    assert metrics.rms_error == pytest.approx((1.02 / 7) ** 0.5, abs=1e-6)
    # Reference: three steps of 0.2, then of 1 and 8.96, each in 0.1 s.
    assert metrics.mean_speed == pytest.approx((3 * 2 + 10 + 89.6) / 5, rel=1e-6)
    assert metrics.max_speed == pytest.approx(89.6, rel=1e-6)
    assert metrics.rho_s == pytest.approx(1.0 / 89.6, rel=1e-6)
    # Measured: 0.1, 0.2, 0.3, then 0 and 7.96.
    assert metrics.measured_mean_speed == pytest.approx((1 + 2 + 3 + 0 + 79.6) / 5, rel=1e-6)
    # |Δu|: 0.5, 0, 1, then 0, 1.
    assert metrics.command_change == pytest.approx(2.5 / 5)
    # Where two changes follow each other, one of them is zero.
    assert metrics.chatter == 0
    # 9.96 is within 0.5 % of the range of 20 from the upper limit.
    assert metrics.limit_hits == 1
    assert metrics.valid_share == 7 / 8


def test_chatter_is_the_share_of_reversed_large_changes(task: Task, record: EpisodeRecord) -> None:
    def chatter(*commands: float) -> float:
        both = np.asarray([commands, commands], np.float32)[..., None]
        return tracking_metrics(task.spec, (dataclasses.replace(record, commands=both),)).chatter

    # Reversals of two steps in the first trajectory and of one in the second, which was cut short.
    assert chatter(-1.0, 1.0, -1.0, 1.0) == 1
    assert chatter(-1.0, 1.0, -1.0, -1.0) == pytest.approx(2 / 3)
    assert chatter(0.0, 0.15, 0.0, 0.15) == 0  # less than a tenth of the range, which is 2
    assert chatter(-1.0, 0.0, 1.0, 1.0) == 0  # large changes, the same way


def test_several_records_count_step_by_step(task: Task, record: EpisodeRecord) -> None:
    one = dataclasses.replace(record, **{name: array[:1] for name, array in record.arrays().items()})
    other = dataclasses.replace(record, **{name: array[1:] for name, array in record.arrays().items()})
    assert tracking_metrics(task.spec, (one, other)) == tracking_metrics(task.spec, (record,))
    # Chatter of the robot does not improve ρ: only the reference's speed counts.
    shaken = dataclasses.replace(
        one, measured=one.measured + np.asarray([[[0.1], [-0.1], [0.1], [-0.1], [0.1]]], np.float32)
    )
    assert tracking_metrics(task.spec, (shaken,)).max_speed == tracking_metrics(task.spec, (one,)).max_speed


def test_a_sample_that_is_not_a_number_is_left_out(task: Task, record: EpisodeRecord) -> None:
    measured = record.measured.copy()
    measured[0, 1] = np.nan
    metrics = tracking_metrics(task.spec, (dataclasses.replace(record, measured=measured),))
    assert metrics.mean_error == pytest.approx(1.1 / 6, abs=1e-6)
    assert metrics.max_error == pytest.approx(1.0)
    assert np.isfinite(metrics.measured_mean_speed)
    assert metrics.valid_share == 6 / 8


def test_a_reference_that_was_not_followed_to_its_end_is_named(task: Task, record: EpisodeRecord) -> None:
    whole = dataclasses.replace(record, valid=np.ones((2, 4), bool))
    nothing = dataclasses.replace(record, valid=np.zeros((2, 4), bool))
    records = (whole, record, nothing)
    references = tuple(EvaluationReference(name, np.zeros((4, 1)), np.zeros(1)) for name in ("all", "most", "none"))
    each = tuple(tracking_metrics(task.spec, (one,)) for one in records)
    result = Evaluation(references, records, each, tracking_metrics(task.spec, records))
    assert result.notes() == ["most: only 7 of 8 steps were followed.", "none: only 0 of 8 steps were followed."]
    assert result.as_dict()["valid_share"] == 15 / 24
    assert [m["valid_share"] for m in result.as_dict()["references"].values()] == [1.0, 7 / 8, 0.0]


def test_each_output_has_its_own_mean_absolute_error() -> None:
    """Of the truth, over the steps that count, under the output's name."""
    plain = toy_spec(steps=3)
    spec = dataclasses.replace(plain, kinematics=SelectedOutput((1, 0)))
    truth = np.zeros((1, 4, 4), np.float32)
    truth[0, :3, 1], truth[0, :3, 0] = [0.0, 0.1, -0.3], [0.5, 0.5, 9.0]
    references = np.zeros((1, 3 + plain.preview[-1], 2), np.float32)
    record = EpisodeRecord.complete(
        np.zeros((1, plain.layout.size), np.float32), truth + 5.0, np.zeros((1, 3, 2)), references
    )
    record = dataclasses.replace(record, truth=truth, valid=np.array([[True, True, False]]))
    reference = EvaluationReference("stay", references[0], np.zeros(2))
    result = Evaluation.of(spec, (reference,), (record,))
    assert result.each_output == pytest.approx({"elbow.position": 0.05, "shoulder.position": 0.5})
    assert result.as_dict()["each_output"] == pytest.approx({"elbow.position": 0.05, "shoulder.position": 0.5})
    nothing = dataclasses.replace(record, valid=np.zeros((1, 3), bool))
    assert np.isnan(list(Evaluation.of(spec, (reference,), (nothing,)).each_output.values())).all()


def test_an_evaluation_is_the_same_every_time_and_leaves_the_robot_alone(task: Task) -> None:
    robot = SimulatedRobot(ScalarPlant(), task)
    policy = Policy.random(task.spec, key=jax.random.key(0), last_gain=0.5)
    before = robot.measured()
    first, second = evaluate(robot, policy), evaluate(robot, policy)
    np.testing.assert_array_equal(robot.measured(), before)
    # As text, because ρ of a reference that stands still is NaN, which is not equal to itself.
    assert repr(first.metrics) == repr(second.metrics)
    assert [r.name for r in first.references] == ["stay", "away"]
    assert [len(record.commands[0]) for record in first.records] == [7, 12]
    data = json.loads(json.dumps(first.as_dict()))
    assert set(data["references"]) == {"stay", "away"}
    assert data["references"]["away"]["mean_speed"] == pytest.approx(0.3)
    # Twice as fast when asked.
    assert evaluate(robot, policy, speed=0.6).metrics[1].mean_speed == pytest.approx(0.6)
