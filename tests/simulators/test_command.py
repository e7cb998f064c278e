"""From a recording to a policy on the real plant, through the command line, with a robot of the user's own."""

import json
import shutil
from pathlib import Path

import pytest

from firsthand.cli import main
from firsthand.training.run import Run

ROBOT = """
from firsthand.plants import ScalarPlant
from firsthand.robots import SimulatedRobot
from firsthand.tasks import Task, tracking_cost
from firsthand.tasks.base import EvaluationReference
from firsthand_onboard import (
    ControlSpec, Limits, PolicyShape, ReferenceSpec, Scales, SelectedOutput, StateLayout,
)
import numpy as np

SPEC = ControlSpec(
    robot="cart",
    period_s=0.1,
    layout=StateLayout(("p",), (0,), (), ("u",), command_memory=2),
    kinematics=SelectedOutput((0,)),
    preview=(1, 2),
    scales=Scales((0.0,), (1.0,), (0.1,), 0.3, 0.3),
    limits=Limits((-1.0,), (1.0,), (-3.0,), (3.0,)),
    reference=ReferenceSpec("output", 20, (-1.0,), (1.0,)),
    policy=PolicyShape((8,)),
)


class Cart:
    def make_task(self):
        return Task(
            spec=SPEC,
            cost=tracking_cost(SPEC, length_scale=1.0),
            sample_goals=lambda rng, measured, count: rng.uniform(-1, 1, (count, 1)),
            evaluation=lambda speed: (EvaluationReference("away", 0.1 * np.arange(12.0)[:, None], np.zeros(1)),),
            evaluation_speed=0.3,
            home=(0.0,),
            trajectories=5,
        )

    def make_robot(self, task, *, payload_kg, seed):
        return SimulatedRobot(ScalarPlant(), task, seed=seed)


cart = Cart()
"""
SMALL = (
    "--policy-step.steps",
    "1",
    "--imagination.trajectories",
    "0",
    "--model.steps",
    "5",
    "--episodes",
    "1",
    "--no-report",
)


def call(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as done:
        main([str(argument) for argument in arguments])
    return int(done.value.code or 0)


@pytest.mark.slow
def test_record_fit_train_evaluate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "robot.py").write_text(ROBOT)
    robot, log = "robot.py:cart", tmp_path / "rec"
    assert call("simulator", "record", robot, "--minutes", "3", "--out", log) == 0
    assert (
        call("simulator", "fit", "rec", "--out", "sim", "--steps", "200", "--rollout-steps", "0", "--members", "1") == 0
    )
    said = capsys.readouterr().out
    for words in ("after", "0.1 s", "1 s", "5 s", "p ", "tracked output", "standing", "linear"):
        assert words in said
    description = json.loads(Path("sim/simulator.json").read_text())
    one, _, second, _ = description["accuracy"]["held out"]
    assert one["simulator"]["p"] < one["standing_still"]["p"]
    assert second["steps"] == 10
    assert description["data"][0]["rows"] == 1800
    assert description["robot"] == f"{tmp_path / 'robot.py'}:cart"

    # A recording is not a run.
    assert call("simulator", "record", robot, "--out", log) == 2
    assert "already holds a run or a recording; give another --out." in capsys.readouterr().err
    assert call("evaluate", log) == 2
    assert f"{log} is a recording, not a training run" in capsys.readouterr().err

    # Logs are taken or refused before anything is begun.
    Path("bad.csv").write_text("time,p\n0,1\n")
    assert call("train", "sim", "--data", log, "bad.csv", *SMALL) == 2
    assert "bad.csv has no column 'u'" in capsys.readouterr().err
    assert not Path("runs").exists()
    assert call("train", "sim", "--data", log, *SMALL) == 0
    said = capsys.readouterr().err
    assert "Learning first from what is there" in said
    assert "1800" in said
    run = tmp_path / "runs" / "sim-fast-seed0"
    config = Run.open(run).config
    assert config.robot == str(tmp_path / "sim")
    assert (config.data[0].taken, config.data[0].path) == (1800, str(log))

    errors = {}
    for on in ((), ("--robot", robot)):
        assert call("evaluate", run, "--json", *on) == 0
        errors[on] = json.loads(capsys.readouterr().out)["mean_error"]
    assert errors[()] != errors["--robot", robot]
    assert call("evaluate", run, "--robot", "excavator") == 2
    assert "cannot run on excavator: kinematics." in capsys.readouterr().err

    # What a run started from stays as it was.
    assert call("train", "sim", "--resume", "--data", "bad.csv") == 2
    assert f"was started with {log} as --data" in capsys.readouterr().err
    assert call("train", "sim", "--resume", "--init-from", run) == 2
    assert "was started from no other run" in capsys.readouterr().err
    assert call("train", "sim", "--resume", "--init", "policy") == 2
    assert "there is no --init-from" in capsys.readouterr().err
    assert call("train", "excavator", "--out", "again", "--init-from", run) == 2
    assert f"{run} cannot be started from, because its robot is another: kinematics." in capsys.readouterr().err

    # A simulator that is fitted anew is noticed, and so is one that is gone.
    description["robot_description"]["control_spec"]["period_s"] = 0.05
    Path("sim/simulator.json").write_text(json.dumps(description))
    assert call("evaluate", run) == 2
    assert "period_s is 0.05 there and 0.1 here" in capsys.readouterr().err
    shutil.rmtree("sim")
    assert call("evaluate", run) == 2
    assert "simulator.json, which does not exist any more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("record", "digger", "--out", "x"), "There is no robot 'digger'"),
        (("record", "excavator", "--out", "x", "--minutes", "0"), "minutes is 0.0, but must lie between"),
        (("record", "excavator", "--out", "x", "--minutes", "nan"), "minutes is nan"),
        (("fit", "--out", "x"), "needs at least one log"),
        (("fit", "nothing", "--out", "x"), "nothing does not exist"),
        (
            ("fit", "nothing", "--out", "x", "--seed", "99999999999999999999"),
            "seed is 99999999999999999999, but must lie",
        ),
        (("fit", "nothing", "--out", "/dev/null/x"), "cannot write into /dev/null; give another --out"),
        (("record", "excavator", "--out", "x", "--payload", "-5"), "payload is -5.0 kg, but must lie between"),
        (("record", "excavator", "--out", "x", "--payload", "nan"), "payload is nan kg"),
        (("fit", "a.csv", "--robot", "excavator", "--out", "x"), "a.csv does not exist"),
        (("fit", "a.csv", "--robot", "excavator", "--out", "x", "--steps", "0"), "steps is 0, but must be at least 1"),
    ],
)
def test_a_mistake_gets_one_sentence(
    arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("simulator", *arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
