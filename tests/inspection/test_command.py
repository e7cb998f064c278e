"""`firsthand inspect` on a registered robot: files, sentences, Ctrl-C."""

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from firsthand.cli import main
from firsthand.robots.registry import ROBOTS
from firsthand.robots.source import RobotSource
from firsthand.tasks.base import Task

from .probe import PERIOD_S, ProbeRobot, Truth


@dataclass(frozen=True)
class Source(RobotSource):
    """A probe by name; Ctrl-C is pressed before this many plays."""

    interrupt_at: int | None = None

    def make_task(self) -> Task:
        return ProbeRobot(Truth()).task

    def make_robot(self, task: Task, *, payload_kg: float, seed: int) -> ProbeRobot:
        def press(plays: int) -> None:
            if plays == self.interrupt_at:
                os.kill(os.getpid(), signal.SIGINT)

        return ProbeRobot(Truth(delay=3, noise=1e-4), seed=seed, before_play=press)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(name, os.environ.get(name, "0"))

    def command(*arguments: str, interrupt_at: int | None = None) -> tuple[object, str, str]:
        monkeypatch.setitem(ROBOTS, "probe", Source(interrupt_at))
        with pytest.raises(SystemExit) as end:
            main(["inspect", "probe", *arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return command


def test_what_is_written(run: Any, tmp_path: Path) -> None:
    code, out, _ = run()
    assert code == 0
    folder = tmp_path / "inspections" / "probe"
    data = json.loads((folder / "inspection.json").read_text())
    channel = data["channels"][0]
    assert channel["dead_time_steps"] == 3
    assert channel["dead_time_s"] == pytest.approx({"seen_after": 3 * PERIOD_S, "at_most": 4 * PERIOD_S})
    assert channel["response_unit"] == "p0 per s"
    assert len(channel["static_gain"]["response"]) == len(channel["static_gain"]["command_from_neutral"])
    assert data["proposal"]["command_memory"] > data["proposal"]["now"]["command_memory"]
    page = (folder / "index.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 3
    assert "http" not in page.replace("http-equiv", "")
    for name in ("responses", "gains", "coupling"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert f"command_memory={data['proposal']['command_memory']}" in out


def test_ctrl_c_reports_what_was_learned(run: Any, tmp_path: Path) -> None:
    code, _, err = run("--out", "stopped", interrupt_at=250)
    assert code == 130
    assert "the robot was left neutral" in err
    assert json.loads((tmp_path / "stopped" / "inspection.json").read_text())["ended_early"] == "interrupted"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--amplitude", "0"), "amplitude is 0, but must be above 0 and at most 1"),
        (("--amplitude", "1.5"), "amplitude is 1.5, but must be above 0 and at most 1"),
        (("--minutes", "-1"), "minutes is -1, but must be a positive number"),
        (("--minutes", "0.1"), "minutes is 0.1, but 1 command channels"),
        (("--seed", "5000000000"), "seed is 5000000000, but must lie between 0 and 4294967295"),
        (("--out", "file"), "cannot make the folder file: a file has that name"),
    ],
)
def test_wrong_input_gets_one_sentence(run: Any, tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith(f"firsthand: {sentence}")
    assert err.count("\n") == 1
