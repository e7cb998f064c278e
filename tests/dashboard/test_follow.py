"""Reading runs while they are written: what is new, what is torn, what is thinned, and which names lead where."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from firsthand.advice import EPISODES_NEEDED
from firsthand.control import files
from firsthand.dashboard import charts, echarts, trajectory_charts
from firsthand.dashboard.follower import RunFollower
from firsthand.dashboard.run_list import RunList
from firsthand.drawing import body_points
from firsthand.errors import UserError
from firsthand.robots.description import ROBOT_DESCRIPTION, RobotDescription
from firsthand.runs import RunFolder
from firsthand.tasks import excavator_task, soft_arm_task
from firsthand.units import unit_of
from firsthand_onboard.kinematics import tracked_output

TASK = excavator_task(steps=6, trajectories=2, hidden=(4,))
SPEC = TASK.spec


def config(**more) -> dict:
    settings = {"policy_step": {"eta": 1.0, "epsilon": 0.25}}
    base = {"robot": "excavator", "preset": "paper", "seed": 0, "episodes": 3, "payload_kg": 0.0, "settings": settings}
    return {**base, ROBOT_DESCRIPTION: RobotDescription.of(TASK).as_dict(), **more}


def record(rng: np.random.Generator) -> dict[str, np.ndarray]:
    middle = np.asarray(SPEC.scales.measured_center)
    return {
        "measured": (middle + 0.1 * rng.standard_normal((2, 7, 8))).astype(np.float32),
        "commands": rng.uniform(-1, 1, (2, 6, 4)).astype(np.float32),
        "references": rng.uniform(3, 6, (2, 6 + SPEC.preview[-1], 2)).astype(np.float32),
        "free": np.ones((2, 6, 4), bool),
        "valid": np.asarray([[True] * 6, [True] * 4 + [False] * 2]),
    }


@pytest.fixture
def folder(tmp_path):
    with RunFolder.create(tmp_path / "run", config(), provenance={}) as run:
        yield run


def test_a_run_grows_under_the_reader(folder):
    follower = RunFollower(folder.path)
    follower.poll()
    assert (follower.metrics.episodes, follower.problem, follower.motion()) == (0, "", None)
    rng = np.random.default_rng(0)
    for episode in (1, 2):
        arrays = record(rng)
        folder.save_episode(episode, arrays, {})
        folder.append_metrics({"episode": episode, "tracking_error": 1.0 / episode, "model_loss": None})
        before = follower.version
        follower.poll()
        assert follower.version > before
        assert follower.metrics.last("tracking_error") == 1.0 / episode
    assert np.isnan(follower.metrics.last("model_loss"))
    assert follower.metrics.best_episode() == 2

    # The last trajectory of the newest episode, as far as it happened; errors against the sum written out.
    motion = follower.motion()
    assert motion is not None
    assert (motion.episode, motion.trajectory, len(motion.actual)) == (2, 2, 4)
    tip = np.asarray(tracked_output(SPEC, arrays["measured"][1, :4].astype(float)))
    away = np.hypot(*(tip - arrays["references"][1, :4]).T)
    assert motion.error == pytest.approx(away.mean(), rel=1e-6)

    # A torn line does not count; a resume takes episodes back.
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"episode": 3, "tracki')
    before = follower.version
    follower.poll()
    assert (follower.metrics.episodes, follower.version) == (2, before)
    folder.truncate_metrics(1)
    follower.poll()
    assert follower.metrics.column("episode").tolist() == [1.0]
    assert [line["episode"] for line in follower.metrics.newest] == [1]


def test_the_runs_that_cannot_be_shown_say_why(tmp_path):
    waiting = RunFollower(tmp_path / "later")
    waiting.poll()
    assert "waits for it to start" in waiting.problem
    RunFolder.create(tmp_path / "later", config(), provenance={}).close()
    waiting.poll()
    assert waiting.problem == ""
    assert waiting.info is not None

    future = tmp_path / "future"
    future.mkdir()
    (future / "config.json").write_text('{"format": 99}')
    for path, word in ((future, "format 99"), (tmp_path / "old", "another version")):
        if path.name == "old":
            RunFolder.create(path, {"robot": "x"}, provenance={}).close()
        follower = RunFollower(path)
        follower.poll()
        assert word in follower.problem
    with pytest.raises(UserError, match="neither does the folder"):
        RunList([tmp_path / "no" / "where"])
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        RunList([tmp_path / "file"])


def test_only_runs_inside_the_folder_are_offered(tmp_path):
    outside = tmp_path / "outside"
    RunFolder.create(outside, config(), provenance={}).close()
    runs = tmp_path / "runs"
    RunFolder.create(runs / "a", config(), provenance={}).close()
    (runs / "not a run").mkdir()
    (runs / "link").symlink_to(outside)
    found = RunList([runs])
    assert list(found.followers) == ["a"]
    RunFolder.create(runs / "b", config(), provenance={}).close()
    found.poll()
    assert list(found.followers) == ["a", "b"]
    RunFolder.create(tmp_path / "more" / "a", config(), provenance={}).close()
    assert list(RunList([runs / "a", tmp_path / "more" / "a"]).followers) == ["a", "more/a"]


def test_a_long_run_stays_light_and_keeps_its_spikes(folder):
    count = 5000
    rng = np.random.default_rng(1)
    error = rng.uniform(0.01, 0.02, count)
    error[3210], error[77] = 5.0, 1e-6
    rows = [{"episode": k + 1, "tracking_error": e, "step_norm": 0.1} for k, e in enumerate(error)]
    (folder.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    follower = RunFollower(folder.path)
    follower.poll()
    assert follower.metrics.episodes == count
    options = charts.error_chart({"run": follower}, ["run"], "run")
    shown = dict(options["series"][0]["data"])
    assert len(shown) <= echarts.MAX_POINTS + 1
    assert shown[3211.0] == pytest.approx(500.0)
    assert shown[78.0] == pytest.approx(1e-4)
    assert len(json.dumps(options)) < 20_000
    # Only what was added is read.
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"episode": count + 1, "tracking_error": 0.5}) + "\n")
    offset = follower.metrics.offset
    follower.poll()
    assert follower.metrics.offset > offset
    assert follower.metrics.last("tracking_error") == 0.5
    # Advice is derived from the newest lines only.
    assert [line["episode"] for line in follower.metrics.newest] == list(range(count + 2 - EPISODES_NEEDED, count + 2))


def test_charts_take_what_a_broken_run_has(folder):
    rows = [
        {"episode": 1, "tracking_error": None},
        {"episode": 2, "tracking_error": 0.0, "closed_loop_growth": 1e9},
    ]
    for row in rows:
        folder.append_metrics(row)
    follower = RunFollower(folder.path)
    follower.poll()
    made = [
        charts.error_chart({"run": follower}, ["run"], "run"),
        charts.prediction_chart(follower),
        charts.growth_chart(follower),
        charts.novelty_chart(follower),
        charts.correlation_chart(follower),
        charts.step_chart(follower),
        trajectory_charts.command_chart(follower.info, follower.motion()),
    ]
    json.dumps(made, allow_nan=False)
    assert [y for _, y in made[0]["series"][0]["data"]] == [None, None]


def test_marks_say_what_was_changed(folder):
    (folder.path / "control").mkdir()
    for kind, text in (("payload", "payload {b}|500 kg"), ("return", "back to 3"), ("pause", "paused")):
        files.append_event(folder.path, files.Event(7, kind, text))
    follower = RunFollower(folder.path)
    follower.poll()
    marks = charts.event_marks(follower)["data"]
    assert [mark["xAxis"] for mark in marks] == [7]
    assert marks[0]["label"]["formatter"] == "payload (b)/500 kg, back to 3"


@pytest.mark.parametrize("make", [excavator_task, soft_arm_task])
def test_a_body_ends_where_the_tip_is(make):
    spec = make().spec
    measured = np.asarray(spec.scales.measured_center) + 0.05 * np.random.default_rng(0).standard_normal(
        (3, spec.layout.num_measured)
    )
    body = body_points(spec, measured)
    assert body is not None
    np.testing.assert_allclose(body[:, -1], tracked_output(spec, measured))
    assert body.shape == (3, 5 if make is excavator_task else 4, 2)


def test_units_are_the_robots_own():
    assert unit_of("m").with_unit(0.0423) == "4.23 cm"
    assert unit_of("m").with_unit(2.2) == "220.0 cm"
    assert unit_of("m").with_unit(0.0) == "0.00 cm"
    assert unit_of("m").with_unit(0.0032) == "0.32 cm"
    assert unit_of("m").with_unit(1.04e-4) == "0.010 cm"  # a tenth of a millimetre …
    assert unit_of("m").with_unit(7.1e-5) == "0.0071 cm"  # … is not 0.07 mm
    assert unit_of("rad").with_unit(0.115) == "0.115 rad"
    assert unit_of("rad").with_unit(float("nan")) == "– rad"


def test_an_error_of_the_disk_is_shown_and_then_over(folder, monkeypatch):
    runs = RunList([folder.path.parent])
    (follower,) = runs.followers.values()
    exists = Path.exists

    def fails(path: Path) -> bool:
        if path.name == "config.json":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return exists(path)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "exists", fails)
        folder.append_metrics({"episode": 1, "tracking_error": 1.0})
        runs.poll()
        assert "cannot look for runs" in runs.problem
        assert list(runs.followers.values()) == [follower]
        assert follower.metrics.episodes == 1  # what can be read is read
    runs.poll()
    assert (runs.problem, follower.problem) == ("", "")


def test_a_run_that_cannot_be_read_leaves_the_machine_within_reach(folder, monkeypatch):
    follower = RunFollower(folder.path)
    follower.poll()
    looked = []

    def fails() -> None:
        raise RuntimeError("something new")

    monkeypatch.setattr(follower.metrics, "read", fails)
    monkeypatch.setattr(follower, "_watch_machine", lambda: looked.append(True))
    follower.poll()
    assert "something new" in follower.problem
    assert looked
