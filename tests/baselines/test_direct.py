"""Comparing on a robot itself, and the suite of robots."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

import firsthand_lab
from firsthand.errors import UserError
from firsthand.robots.registry import find_robot
from firsthand_lab.baselines import direct, direct_comparison
from firsthand_lab.cli.compare import Compare
from firsthand_lab.cli.experiment import Experiment, _conclude_so_far
from firsthand_lab.experiments import Result, Size, files, suite, worker
from firsthand_lab.experiments.base import Verdict
from firsthand_lab.experiments.pool import Ended
from firsthand_lab.experiments.registry import find
from firsthand_lab.experiments.study import Study

AXIS = Path(firsthand_lab.__file__).parent / "suite_robots" / "axis.py"
MARKS = suite.MARKS["full"]


def book(errors: list[float], *, tests: tuple[float, ...], valid: float = 1.0, still: float = 1.0) -> dict[str, Any]:
    def row(episode: int, error: float, valid: float) -> dict[str, Any]:
        return {"episode": episode, "error": error, "valid": valid, "outside": 0.0, "robot_min": 0.5 * episode}

    rows = [row(k + 1, error, 1.0) for k, error in enumerate(errors)]
    tested = [row(mark, error, valid) for mark, error in zip(MARKS, tests, strict=True)]
    return {"unit": "m", "still": still, "notes": [], "episodes": rows, "tests": tested}


@pytest.fixture
def conclude(tmp_path: Path):
    def make(changes: dict[tuple[str, str], dict[str, Any]]):
        size, results = Size("full", 1), []
        for job in suite.Suite().jobs(size):
            robot, way = job.parameters["robot"], job.parameters["way"]
            last = {"fast": 0.05, "paper": 0.1, "pid": 0.08}[way]
            found = book([0.5] * 4 + [last] * 21, tests=(0.5, 0.2, last))
            folder = tmp_path / job.name
            folder.mkdir(exist_ok=True)
            (folder / suite.BOOKS).write_text(json.dumps(changes.get((robot, way), found)))
            results.append(Result(job, folder))
        return suite.Suite().conclude(size, results)

    return make


def test_every_robot_of_the_suite_has_a_line_and_the_rules_can_hold(conclude):
    finding = conclude({})
    assert finding.verdict is Verdict.PASS
    table = finding.tables["suite"]
    assert list(table["robot"]) == list(suite.ROBOTS)
    assert len(suite.ROBOTS) >= 12
    assert set(table["minutes until PID is beaten"]) == {12.5}  # the test after 25 episodes; training's goals differ
    assert set(table["worst after the tenth"]) == {0.05}


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({("axis", "fast"): book([0.6] * 25, tests=(0.6, 0.6, 0.6)), ("axis", "pid"): book([1], tests=(1, 1, 1))}, 0),
        ({("pole", "fast"): book([0.05] * 25, tests=(0.5, 0.2, 0.05), valid=0.5)}, 0),  # it falls
        ({("axis", "paper"): book([0.01] * 25, tests=(0.5, 0.2, 0.01))}, 1),
        ({(name, "pid"): book([0.01], tests=(0.5, 0.2, 0.01)) for name in ("axis", "tanks", "pole")}, 2),
    ],
)
def test_each_rule_of_the_suite_can_fail(conclude, changes: dict[tuple[str, str], dict[str, Any]], row: int):
    finding = conclude(changes)
    assert finding.verdict is Verdict.FAIL
    assert finding.rows[row].verdict is Verdict.FAIL


def test_a_controller_that_cannot_be_identified_is_no_controller(conclude):
    finding = conclude({("pole", "pid"): {**book([], tests=(1, 1, 1)), "tests": []}})
    line = list(finding.tables["suite"]["robot"]).index("pole")
    assert math.isinf(finding.tables["suite"]["pid"][line])
    assert finding.verdict is Verdict.PASS


def test_what_is_there_is_shown_before_the_last_job_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder, size = tmp_path / "suite", Size("full", 1)
    command = Experiment("suite", seeds=1, out=folder, so_far=True)
    with pytest.raises(UserError, match=r"there is no folder .* yet"):
        command.run()
    with Study(folder, suite.Suite(), size) as study:
        with pytest.raises(UserError, match=r"no job of .* is finished yet"):
            _conclude_so_far(study)
        for job in study.jobs:
            if job.parameters["robot"] == "axis" or job.name == "pole-pid-seed-0":
                files.write_json(study.prepare(job) / suite.BOOKS, book([0.1] * 25, tests=(0.5, 0.2, 0.1)))
                files.write_json(study.folder(job) / files.DONE, {"core_seconds": 1.0, "commit": None})
    assert command.run() == 0
    shown = capsys.readouterr().out
    assert "not comparable" in shown
    assert "So far: 4 of 45 jobs" in " ".join((folder / "finding.md").read_text().split())
    table = files.read_csv(folder / "suite.csv")
    assert list(table["robot"]) == ["axis", "pole"]
    assert math.isnan(float(table["fast 25"][1]))
    with pytest.raises(UserError, match="mean something only together"):
        _conclude_so_far(Study(tmp_path / "other", find("payload"), size))


@pytest.mark.slow
def test_the_pid_is_compared_on_a_robot_from_a_file(tmp_path: Path) -> None:
    found = find_robot(f"{AXIS}:task", approve=True)
    job = direct_comparison.DirectComparison(found, ["pid"], 8).job("pid", 0)
    direct_comparison.run(dict(job.parameters), tmp_path, lambda done, note="": None)
    assert files.read_json(tmp_path / direct_comparison.BOOKS)["tests"][-1]["error"] < 0.02  # standing still: 0.1


class Here:
    """A pool in this process: what the tests replace is replaced in its jobs, too."""

    slots = 1

    def __init__(self) -> None:
        self.ended: list[Ended] = []

    def start(self, id: str, folder: Path) -> None:
        try:
            worker.perform(folder, lambda done, note="": None)
            self.ended.append(Ended(id))
        except UserError as error:
            self.ended.append(Ended(id, str(error)))

    def poll(self, timeout_s: float) -> list[Ended]:
        ended, self.ended = self.ended, []
        return ended

    def stop(self) -> None:
        pass


@pytest.fixture
def controlled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Ways and seeds in the order in which the robot was controlled; the PID cannot identify it."""
    calls: list[tuple[str, int]] = []

    def control(way: str, name: str, robot: Any, seed: int, episodes: int, on_episode: Any) -> direct.Books:
        calls.append((way, seed))
        if way == "pid":
            raise UserError("no command moved it.")
        error = {"ours": 0.1, "paper": 0.9, "neutral": 0.5}[way] + 0.01 * seed
        row = {"episode": episodes, "error": error, "valid": 1.0, "outside": 0.0, "robot_min": 1.0}
        return direct.Books(episodes=[row], tests=[row])

    monkeypatch.setattr(direct_comparison, "control", control)
    monkeypatch.setattr("firsthand_lab.cli.compare.make_pool", lambda *_: Here())
    return calls


def shown_row(capsys: pytest.CaptureFixture[str], way: str) -> str:
    """A row of the table that was printed last."""
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:1] == [way])
    return " ".join(lines[start].split())


def test_a_comparison_on_an_own_robot_is_kept_and_continues(tmp_path: Path, controlled, capsys) -> None:
    out = tmp_path / "comparison"
    first = Compare(f"{AXIS}:task", peers="paper", episodes=8, seeds=1, out=out)
    assert first.run() == 0
    assert sorted(controlled) == [("neutral", 0), ("ours", 0), ("paper", 0)]
    assert shown_row(capsys, "paper") == "paper 0.9 0.0 worse than standing still"
    assert {"finding.md", "finding.json", "tests.csv", "episodes.csv"} <= {path.name for path in out.iterdir()}
    controlled.clear()
    assert first.run() == 0
    assert controlled == []  # all was there
    assert dataclasses.replace(first, seeds=2).run() == 0
    assert {seed for _, seed in controlled} == {1}
    capsys.readouterr()
    controlled.clear()
    assert dataclasses.replace(first, so_far=True).run() == 0
    assert controlled == []
    assert shown_row(capsys, "ours").startswith("ours 0.105")  # the median of both seeds


def test_a_peer_that_fails_is_a_row_and_loses_nothing(tmp_path: Path, controlled, capsys) -> None:
    assert Compare(f"{AXIS}:task", peers="pid", episodes=8, seeds=1, out=tmp_path / "comparison").run() == 0
    assert shown_row(capsys, "pid") == "pid – 0.0 no command moved it."


def test_the_neutral_command_is_run_on_the_robot_itself(tmp_path: Path) -> None:
    found = find_robot(f"{AXIS}:task", approve=True)
    job = direct_comparison.DirectComparison(found, ["pid"], 8).job("neutral", 0)
    direct_comparison.run(dict(job.parameters), tmp_path, lambda done, note="": None)
    tests = files.read_json(tmp_path / direct_comparison.BOOKS)["tests"]
    assert [test["episode"] for test in tests] == [2, 4, 8]
    assert tests[0]["error"] == pytest.approx(0.11, abs=0.02)  # docs/peers.md


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"peers": "pid,ppo"}, "neural-mpc and residual only; leave ppo out of --peers"),
        ({"tiny": True}, "--tiny is there for robots of firsthand's own"),
        ({"so_far": True}, "no folder .* yet: run the same command without --so-far"),
    ],
)
def test_what_a_comparison_on_an_own_robot_cannot_do_is_refused(changed, sentence, tmp_path: Path, controlled) -> None:
    with pytest.raises(UserError, match=sentence):
        Compare(**{"robot": f"{AXIS}:task", "peers": "pid", "out": tmp_path / "none", **changed}).run()
    assert controlled == []
    assert not (tmp_path / "none").exists()


def test_hardware_is_compared_only_when_asked(tmp_path: Path, controlled) -> None:
    file = tmp_path / "real.py"
    file.write_text(
        AXIS.read_text()
        + "\nimport dataclasses\nreal = dataclasses.replace(task, hardware=True, stopping={'lag_s': 0.3})\n"
    )
    command = Compare(f"{file}:real", peers="paper", episodes=8, seeds=1, out=tmp_path / "comparison")
    with pytest.raises(UserError, match="moves something real; add --on-hardware"):
        command.run()
    with pytest.raises(UserError, match="one way to control it can do at a time"):
        dataclasses.replace(command, on_hardware=True, workers=2).run()
    assert dataclasses.replace(command, on_hardware=True).run() == 0
    assert [way for way, _ in controlled] == ["ours", "paper", "neutral"]
