"""Runs are read without their robot: no file of it, no environment, no code of whoever made the folder."""

import importlib.util
import json
import marshal
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firsthand.cli import main
from firsthand.dashboard.run_info import RunInfo
from firsthand.errors import UserError
from firsthand.export import write_export
from firsthand.report import write_comparison, write_report
from firsthand.robots import approval, siblings, user_file
from firsthand.robots.approval import approvals_file
from firsthand.robots.description import ROBOT_DESCRIPTION, RobotDescription
from firsthand.robots.registry import find_robot, make_task
from firsthand.runs import RunFolder
from firsthand.runs.packed import signed_json
from firsthand.training.run import Run
from probe_runs import finished_run

ROBOT = """
import gymnasium
import numpy as np

from firsthand.robots.gymnasium import GymnasiumTask


class Cart(gymnasium.Env):
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    dt = 0.1

    def reset(self, *, seed=None, options=None):
        self.at = np.zeros(1)
        return self.at.copy(), {}

    def step(self, action):
        self.at = self.at + 0.1 * action
        return self.at.copy(), 0.0, False, False, {}


task = GymnasiumTask(
    env=Cart, positions=(0,), position_low=-1.0, position_high=1.0, rate=0.8, steps=8, trajectories=2, angles=(0,),
    command_memory=1, preview=(1, 2), hidden=(8,), unit="rad",
)
"""
EVIL = "from pathlib import Path\nPath({mark!r}).write_text('this was run')\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("reading"), "cart.py", ROBOT)


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "got"))


def change(run: Path, **changes: Any) -> None:
    path = run / "config.json"
    content = json.loads(path.read_text())
    content["config"] |= changes
    content.pop("sha256", None)
    path.write_bytes(signed_json(content))


def read_everything(path: Path, out: Path) -> None:
    run = Run.open(path)
    assert run.path == path
    assert len(run.metrics()) == 2
    assert run.record(1).measured.shape == (2, 9, 1)
    for policy in (run.policy(1), run.kept_policy(), run.newest_policy()):
        assert policy.layers[-1][1].shape == (1,)
    kept = run.kept_episode()
    assert kept is not None
    stored = run.evaluation(kept)
    assert stored is not None
    assert [reference.name for reference in stored.evaluation.references] == ["line", "loop"]
    assert "The metrics of the paper" in write_report(path, out / "page.html").read_text()
    other = shutil.copytree(path, out / "other")
    assert "References never seen" in write_comparison([path, other], out / "both.html").read_text()
    for kind in ("c", "safetensors"):
        write_export(path, kind, out / kind)
    assert "±π: position 0" in next((out / "c").glob("*.md")).read_text().replace("limits: ", "±π: ")
    assert RunInfo.from_config(RunFolder.open(path).config).unit.name == "rad"


def test_a_run_is_read_where_its_file_and_its_environment_are_not(finished, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.setitem(sys.modules, "firsthand.robots.gymnasium", None)
    read_everything(finished, tmp_path)


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize(
    "robot",
    [
        "got/evil.py:task@tcp/127.0.0.1:9",
        "got/evil.py:task",
        "/proc/self/cwd/got/evil.py:task",
        "{here}/got/evil.py:task",
        "{here}/got",
        "got/link.py:task",
        "evil:Env-v0",
        "got.evil:task",
    ],
)
def test_a_strangers_folder_runs_no_code(robot, copied, tmp_path, monkeypatch, capsys):
    """Beside the run, or in it, lies a file, and the run's robot is that file, in every way to name one."""
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "mark"
    (copied / "evil.py").write_text(EVIL.format(mark=str(mark)))
    (tmp_path / "evil.py").write_text(EVIL.format(mark=str(mark)))
    (copied / "link.py").symlink_to("evil.py")
    monkeypatch.syspath_prepend(tmp_path)  # a name with a module in front of it is not a robot either
    if robot == "{here}/got":  # a learned simulator whose robot is that file
        described = RobotDescription.of(make_task("excavator")).as_dict()
        simulator = {"format": 2, "robot": f"{copied}/evil.py:task", ROBOT_DESCRIPTION: described}
        simulator |= {"command_history": 1, "observed_steps": 1, "layers": 1, "free": [], "beyond": "ignore"}
        (copied / "simulator.json").write_text(json.dumps(simulator))
    name = robot.format(here=tmp_path)
    description = json.loads((copied / "config.json").read_text())["config"][ROBOT_DESCRIPTION]
    change(copied, robot=name, **{ROBOT_DESCRIPTION: {**description, "file": None}})
    read_everything(copied, tmp_path)
    for command in (("evaluate", copied), ("train", "excavator", "--out", copied, "--resume")):
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in command])
        assert left.value.code == 2
        assert "\n" not in capsys.readouterr().err.strip()
    assert not mark.exists()


def test_a_file_is_run_only_as_the_user_has_allowed_it(tmp_path, monkeypatch):
    mark, file = tmp_path / "mark", tmp_path / "mine.py"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file.write_text(EVIL.format(mark=str(mark)) + ROBOT)
    with pytest.raises(UserError, match=r"mine\.py \(SHA-256 [0-9a-f]{16}…\) is Python that you have not allowed to"):
        find_robot(f"{file}:task")
    assert not mark.exists()
    find_robot(f"{file}:task", approve=True)
    assert mark.exists()
    assert str(file) in json.loads(approvals_file().read_text())["files"]
    # In another process of the same user, and not after it has changed.
    code = f"from firsthand.robots.registry import find_robot; find_robot({f'{file}:task'!r})"
    for changed in (False, True):
        if changed:
            file.write_text(file.read_text() + "\n# changed\n")
        mark.unlink(missing_ok=True)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode == 0, mark.exists()) == (not changed, not changed), done.stderr
    approvals_file().write_text("{")
    with pytest.raises(UserError, match="have not allowed"):
        find_robot(f"{file}:task")


def find_anew(name: str, *, approve: bool) -> str:
    """What another process of the same user would be told: nothing is remembered here."""
    user_file._loaded.clear()
    siblings._trusted.clear()
    siblings._folders.clear()
    approval._approved_here.clear()
    for module in [module for module in sys.modules if module.startswith("beside_it")]:
        del sys.modules[module]
    try:
        find_robot(name, approve=approve)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", ["module", "package", "submodule", "compiled", "later"])
def test_what_lies_beside_a_robot_file_is_run_only_as_the_user_has_allowed_it(kind, tmp_path, monkeypatch):
    """What a robot file imports from its folder belongs to it; somebody may change it afterwards."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    mark, beside = tmp_path / "mark", tmp_path / "beside_it.py"
    importing = "import beside_it"
    if kind in ("package", "submodule"):
        (tmp_path / "beside_it").mkdir()
        beside = tmp_path / "beside_it" / ("__init__.py" if kind == "package" else "part.py")
        importing = "import beside_it.part" if kind == "submodule" else importing
    if kind == "submodule":
        (tmp_path / "beside_it" / "__init__.py").write_text("")
    beside.write_text("")
    file = tmp_path / "mine.py"
    body = f"def own():\n    {importing}\n    return task\n" if kind == "later" else f"{importing}\n"
    name = f"{file}:{'own' if kind == 'later' else 'task'}"
    file.write_text(body + ROBOT if kind != "later" else ROBOT + body)
    for approve in (True, False):
        assert find_anew(name, approve=approve) == ""
    if kind == "compiled":  # what Python would take for the file, without looking into it
        code = compile(EVIL.format(mark=str(mark)), str(beside), "exec")
        cached = Path(importlib.util.cache_from_source(str(beside)))
        cached.parent.mkdir(exist_ok=True)
        header = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)  # by hash, unchecked
        cached.write_bytes(header + marshal.dumps(code))
        assert find_anew(name, approve=False) == ""
    else:
        beside.write_text(EVIL.format(mark=str(mark)))
        said = find_anew(name, approve=False)
        assert f"{beside.name} (SHA-256" in said
        assert f"--robot {file}:NAME" in said
    assert not mark.exists()
    assert approvals_file().stat().st_mode & 0o777 == 0o600


def test_a_link_to_an_allowed_file_brings_no_neighbours_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    mark, mine, theirs = tmp_path / "mark", tmp_path / "mine", tmp_path / "theirs"
    for folder in (mine, theirs):
        folder.mkdir()
    (mine / "linked.py").write_text("import beside_it_too\n" + ROBOT)
    (mine / "beside_it_too.py").write_text("")
    (theirs / "linked.py").symlink_to(mine / "linked.py")
    (theirs / "beside_it_too.py").write_text(EVIL.format(mark=str(mark)))
    assert find_anew(f"{mine}/linked.py:task", approve=True) == ""
    assert "beside_it_too.py (SHA-256" in find_anew(f"{theirs}/linked.py:task", approve=False)
    assert not mark.exists()


def test_a_robot_file_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(UserError, match="cannot read the robot file"):
        find_robot(f"{tmp_path}/pipe.py:task", approve=True)


@pytest.mark.parametrize("answer", ["y\n", "n\n", ""])
def test_who_sits_at_a_terminal_is_asked(answer, tmp_path, monkeypatch, capsys):
    class Terminal:
        isatty = staticmethod(lambda: True)
        readline = staticmethod(lambda: answer)

    file = tmp_path / "asked.py"
    file.write_text(ROBOT + f"# {answer!r}")
    monkeypatch.setattr(sys, "stdin", Terminal)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    if answer == "y\n":
        assert find_robot(f"{file}:task").task.unit == "rad"
    else:
        with pytest.raises(UserError, match="have not allowed"):
            find_robot(f"{file}:task")
    said = capsys.readouterr().err
    assert str(file) in said
    assert "SHA-256 " in said


def test_a_name_cannot_write_over_the_question(tmp_path, monkeypatch, capsys):
    class Terminal:
        isatty = staticmethod(lambda: True)
        readline = staticmethod(lambda: "n\n")

    folder = tmp_path / "a\x1b[2J\r\nRun it? \u202e"
    folder.mkdir()
    (folder / "asked.py").write_text(ROBOT)
    monkeypatch.setattr(sys, "stdin", Terminal)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with pytest.raises(UserError, match="have not allowed"):
        find_robot(f"{folder}/asked.py:task")
    said = capsys.readouterr().err
    assert said.count("\n") == 3
    assert all(c.isprintable() for c in said.replace("\n", ""))
    assert "a\\x1b[2J\\x0d\\x0aRun" in said


def test_an_evaluation_belongs_to_the_policy_that_was_evaluated(copied):
    run = Run.open(copied)
    assert run.evaluation(1) is not None
    arrays, info = run.folder.load_episode(1)
    (copied / "episodes" / "000001.safetensors").unlink()
    with RunFolder.open(copied, writer=True) as folder:
        folder.save_episode(1, {**arrays, "policy.0.bias": arrays["policy.0.bias"] + 1}, info)
    assert run.evaluation(1) is None


def test_arrays_that_do_not_fit_the_robot_are_one_sentence(copied):
    run = Run.open(copied)
    arrays, info = run.folder.load_episode(2)
    for name, array, words in (
        ("measured", np.zeros((2, 9, 3), np.float32), r"measured has the shape \(2, 9, 3\)"),
        ("policy.0.weight", np.zeros((8, 3), np.float32), r"policy\.0\.weight has the shape"),
        ("valid", None, "'valid' is missing"),
    ):
        (copied / "episodes" / "000002.safetensors").unlink()
        changed = {key: value for key, value in {**arrays, name: array}.items() if value is not None}
        with RunFolder.open(copied, writer=True) as folder:
            folder.save_episode(2, changed, info)
        with pytest.raises(UserError, match=rf"^episode 2 of .* is damaged: {words}"):
            run.policy(2) if name.startswith("policy") else run.record(2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"home": [0.0, 1.0]}, r"home is \[0\.0, 1\.0\], but must list 1 numbers"),
        ({"home": [float("nan")]}, "home is nan, but must be a finite number"),
        ({"kind": "toy"}, "kind is 'toy', but must be one of machine"),
        ({"angles": [7]}, "angles names entry 7"),
        ({"trajectories": 10**400}, "trajectories is a very large number"),
        ({"trajectories": True}, "trajectories is True, but must be a whole number"),
        ({"references": [{"name": "a", "points": [[1.0, 2.0]], "start": [0.0]}]}, r"references\[0\]\.points"),
        ({"file": "x"}, "file is not an object"),
        ({"control_spec": {}}, "the control specification has format None"),
        ({"unit": 3}, "unit is 3, but must be text"),
    ],
)
def test_a_damaged_description_is_one_sentence(copied, changes, words):
    description = json.loads((copied / "config.json").read_text())["config"][ROBOT_DESCRIPTION]
    with pytest.raises(UserError, match=rf"^{ROBOT_DESCRIPTION} .*is damaged: {words}") as caught:
        RobotDescription.from_dict({**description, **changes}, ROBOT_DESCRIPTION + " here")
    assert "\n" not in str(caught.value)
    assert RobotDescription.from_dict(description) == Run.open(copied).description
    with pytest.raises(UserError, match="the field unit is missing"):
        RobotDescription.from_dict({name: value for name, value in description.items() if name != "unit"})


def test_a_run_of_the_format_before_is_refused_with_its_version(copied):
    content = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**content, "format": 1}))
    with pytest.raises(UserError, match=r"has the format 1, and this version of firsthand reads 2; use the version"):
        Run.open(copied)
