"""`firsthand new` writes files that run; `firsthand check` says what is wrong with a task. Neither moves a robot."""

import dataclasses
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import firsthand as fh
from firsthand.cli.check import Check
from firsthand.cli.new import New
from firsthand.robots.preflight import Verdict, check_robot
from firsthand.robots.registry import NamedRobot, find_robot
from firsthand.robots.starting_file import gymnasium_text, log_text
from firsthand_onboard import SelectedOutput

ROOT = Path(__file__).parents[2]
ARM = ROOT / "examples" / "arms" / "six_joint.urdf"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder to work in, with the arm's file in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shutil.copy(ARM, tmp_path / "arm.urdf")
    return tmp_path


def test_a_urdf_arm_from_an_empty_folder(folder, capsys):
    assert New(Path("my_robot.py"), urdf=Path("arm.urdf"), tip="tool0").run() == 0
    assert "Next: firsthand check my_robot.py:task" in capsys.readouterr().out
    text = (folder / "my_robot.py").read_text()
    assert max(len(line) for line in text.splitlines()) <= 120
    assert sum("EDIT" in line for line in text.splitlines()) <= 20
    assert Check("my_robot.py:task").run() == 0
    out = capsys.readouterr().out
    for word in ("limits", "start", "every joint moves it", "self-collision", "differentiable", "Nothing wrong"):
        assert word in " ".join(out.split()), word
    found = find_robot("my_robot.py:task")
    spec = found.task.spec
    assert spec.num_outputs == 3
    assert spec.limits.command_high == pytest.approx([1.2, 1.2, 1.5, 1.8, 1.8, 1.8])
    assert (np.asarray(spec.limits.position_high) - spec.limits.position_low <= 1.0 + 1e-6).all()
    robot = found.make()
    before = robot.measured()
    after = robot.play(np.tile(spec.limits.command_high, (4, 1)).astype(np.float32))[-1]
    assert (after[:6] > before[:6]).all()
    robot.close()


def test_a_gymnasium_id(folder):
    assert New(Path("my_robot.py"), gymnasium="Pendulum-v1").run() == 0
    task = find_robot("my_robot.py:task", approve=True).task
    assert task.spec.period_s == pytest.approx(0.05)
    assert task.spec.kinematics == SelectedOutput((0,))


def test_a_log(folder):
    rows = [f"{0.04 * i:.2f},{np.sin(i / 9):.4f},{np.cos(i / 9):.4f},{np.sin(i / 5):.3f},on" for i in range(200)]
    Path("log.csv").write_text("\n".join(["time,boom.position [m],boom.velocity (m/s),boom valve,mode", *rows]))
    assert New(Path("my_robot.py"), csv=Path("log.csv")).run() == 0
    task = find_robot("my_robot.py:task", approve=True).task
    assert task.spec.period_s == pytest.approx(0.04)
    assert len(task.spec.layout.position) == len(task.spec.layout.velocity) == len(task.spec.layout.commands) == 1
    assert task.spec.limits.position_low[0] == pytest.approx(-1.04, abs=0.01)
    assert (task.spec.layout.measured_units, task.spec.layout.command_units) == (("m", "m/s"), ("",))
    assert New(Path("other.py"), csv=Path("log.csv"), commands=("boom.velocity (m/s)",)).run() == 0


def test_a_log_whose_commands_have_the_names_of_the_joints(folder):
    """The columns that docs/start_from_data.md names for the excavator."""
    rows = [f"{0.04 * i:.2f},{np.sin(i / 9):.4f},{np.cos(i / 9):.4f},{np.sin(i / 5):.3f}" for i in range(100)]
    Path("log.csv").write_text("\n".join(["time,boom.position,boom.velocity,boom", *rows]))
    assert New(Path("my_robot.py"), csv=Path("log.csv")).run() == 0
    layout = find_robot("my_robot.py:task", approve=True).task.spec.layout
    assert layout.measured == ("boom.position", "boom.velocity")
    assert layout.commands == ("boom",)


def test_a_log_with_infinite_values_and_names_of_any_alphabet(folder):
    rows = [f"{0.04 * i:.2f},{np.sin(i / 9):.4f},{np.sin(i / 5):.3f}" for i in range(100)]
    names = ["Höhe 🚜", "Ventil cmd"]
    Path("log.csv").write_text("\n".join([",".join(["time", *names]), *rows, "4.0,inf,-inf"]), encoding="utf-8")
    assert New(Path("my_robot.py"), csv=Path("log.csv")).run() == 0
    assert "Höhe 🚜" in Path("my_robot.py").read_text(encoding="utf-8")
    layout = find_robot("my_robot.py:task", approve=True).task.spec.layout
    assert (layout.measured[0], *layout.commands) == tuple(names)


def test_names_inject_nothing_into_the_file(folder):
    """A file from somebody else is only ever data."""
    evil = 'tool0"); raise SystemExit("""evil""") #\\'
    quoted = evil.replace("&", "&amp;").replace('"', "&quot;")
    Path("arm.urdf").write_text(ARM.read_text().replace("tool0", quoted).replace('"wrist_3"', f'"{quoted}"'))
    assert New(Path("my_robot.py"), urdf=Path("arm.urdf"), tip=evil).run() == 0
    find_robot("my_robot.py:task", approve=True)


BAD = {
    "nothing": (New(Path("a.py")), "nothing to start from was given; give one of --urdf FILE --tip LINK"),
    "two": (New(Path("a.py"), gymnasium="x", csv=Path("y")), "--gymnasium and --csv were given"),
    "tip": (New(Path("a.py"), urdf=Path("arm.urdf")), "tip is missing.* links at an end of the robot are tool0"),
    "no such tip": (
        New(Path("a.py"), urdf=Path("arm.urdf"), tip="hand"),
        "tip is 'hand', but the links are: base_link",
    ),
    "still": (New(Path("a.py"), urdf=Path("arm.urdf"), tip="base_link"), "no joint moves 'base_link'"),
    "no file": (New(Path("a.py"), urdf=Path("none.urdf"), tip="x"), "there is no robot file none.urdf"),
    "other options": (New(Path("a.py"), gymnasium="x", tip="y"), "--tip belongs to --urdf"),
    "suffix": (New(Path("a.txt"), gymnasium="x"), "a.txt, but its name must end in .py"),
    "there already": (New(Path("here.py"), gymnasium="x"), "here.py is there already and is not replaced"),
    "no environment": (New(Path("a.py"), gymnasium="Nothing-v9"), "gymnasium.make.*fails.*give MODULE:ID"),
    "discrete": (New(Path("a.py"), gymnasium="CartPole-v1"), "actions must be continuous"),
    "no log": (New(Path("a.py"), csv=Path("none.csv")), "there is no log none.csv"),
    "no header": (New(Path("a.py"), csv=Path("numbers.csv")), "must begin with a line of column names"),
    "no commands": (New(Path("a.py"), csv=Path("plain.csv")), "no column of plain.csv is recognised as a command"),
    "wrong commands": (
        New(Path("a.py"), csv=Path("plain.csv"), commands=("z",)),
        "commands names 'z', but the",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence_and_writes_nothing(case, folder):
    Path("here.py").write_text("mine")
    Path("numbers.csv").write_text("1,2\n3,4\n")
    Path("plain.csv").write_text("x,y\n3,4\n5,6\n")
    command, message = BAD[case]
    with pytest.raises(fh.UserError, match=message):
        command.run()
    assert not Path("a.py").exists()
    assert Path("here.py").read_text() == "mine"


@pytest.fixture(scope="module")
def reach() -> NamedRobot:
    """A planar arm's task, of which each test spoils a part."""
    return find_robot("excavator")


def verdicts(found: NamedRobot) -> dict[str, Verdict]:
    return {row.what: row.verdict for row in check_robot(found)}


def test_a_built_in_robot_passes(reach):
    rows = check_robot(reach)
    assert all(row.verdict in (Verdict.OK, Verdict.NOTE) for row in rows if row.what not in ("units", "goals")), rows


def test_what_is_wrong_is_found(reach, monkeypatch):
    """One at a time: goals outside and of the wrong shape, a home and a start outside the limits."""
    monkeypatch.setattr("firsthand.robots.preflight._cost", lambda task: [])

    def spoilt(**changes) -> dict[str, Verdict]:
        return verdicts(dataclasses.replace(reach, task=dataclasses.replace(reach.task, **changes)))

    assert spoilt(sample_goals=lambda rng, measured, n: np.full((n, 4), 9.0))["goals"] is Verdict.WRONG
    assert spoilt(sample_goals=lambda rng, measured, n: np.full((n, 3), 0.5))["goals"] is Verdict.WRONG
    assert spoilt(sample_goals=lambda rng, measured, n: np.full((n, 4), np.nan))["goals"] is Verdict.WRONG
    still = spoilt(sample_goals=lambda rng, measured, n: np.tile(reach.task.home, (n, 1)))
    assert still["goals"] is Verdict.DOUBTFUL
    assert spoilt(home=(9.0, 1.2, 0.6, 0.8))["home"] is Verdict.WRONG

    def fails(speed: float):
        raise ValueError("no paths")

    assert spoilt(evaluation=fails)["evaluation"] is Verdict.WRONG


def test_a_cost_without_a_derivative_is_found(reach):
    import jax.numpy as jnp

    from firsthand.robots import preflight

    class Norm:
        def __call__(self, state, command, reference):
            return jnp.sqrt(jnp.sum((state[:2] - state[:2]) ** 2))

    task = dataclasses.replace(reach.task)
    object.__setattr__(task, "cost", Norm())
    (row,) = preflight._cost(task)
    assert row.verdict is Verdict.WRONG
    assert "derivative" in row.text


def test_hardware_is_not_looked_at(reach, monkeypatch):
    from firsthand.robots import preflight

    class Real:
        hardware = True

    monkeypatch.setattr(NamedRobot, "make", lambda self: Real())
    (row,) = preflight._look_at_robot(reach)
    assert row.verdict is Verdict.NOTE


def test_an_environment_of_your_own_is_found_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "belt_of_mine.py").write_text(
        "import gymnasium\n"
        "from firsthand.robots.servo_axes import ServoAxes\n"
        "def make():\n"
        "    return ServoAxes(low=[0.0], high=[1.0], speed=1.0, period_s=0.1)\n"
        "gymnasium.register(id='BeltOfMine-v0', entry_point=make)\n"
    )
    monkeypatch.chdir(tmp_path.parent)  # not where the module lies
    before = list(sys.path)
    text = gymnasium_text(str(tmp_path / "belt.py"), "belt_of_mine:BeltOfMine-v0")
    assert 'gymnasium.make("belt_of_mine:BeltOfMine-v0")' in text
    assert sys.path == before


def test_units_in_a_header_are_no_part_of_a_name(tmp_path: Path) -> None:
    log = tmp_path / "tank.csv"
    log.write_text("time,level [m],pump [V]\n" + "".join(f"{k / 2},{k % 7},{k % 3}\n" for k in range(30)))
    text = log_text(str(tmp_path / "tank.py"), log)
    assert 'POSITIONS = ("level",)' in text
    assert 'COMMANDS = ("pump",)' in text
    assert 'units=("m",)' in text
    log.write_text("time,x [m],x [rad],u\n" + "".join(f"{k / 2},{k % 7},{k % 5},{k % 3}\n" for k in range(30)))
    assert 'POSITIONS = ("x [m]", "x [rad]")' in log_text(str(tmp_path / "x.py"), log, commands=("u",))


@pytest.mark.parametrize(
    ("heading", "rows_per_s", "period"),
    [("time [s]", 2, 0.5), ("stamp_ms", 0.02, 0.05), ("T (us)", 1e-5, 0.1), ("Timestamp", 4, 0.25)],
)
def test_times_are_found_by_heading_and_unit(tmp_path: Path, heading, rows_per_s, period) -> None:
    log = tmp_path / "tank.csv"
    log.write_text(f"level,pump,{heading}\n" + "".join(f"{k % 7},{k % 3},{k / rows_per_s:.9g}\n" for k in range(30)))
    text = log_text(str(tmp_path / "tank.py"), log)
    assert f"PERIOD_S = {period}  #" in text
    assert 'POSITIONS = ("level",)' in text


def test_a_column_that_only_sounds_like_time_is_measured(tmp_path: Path) -> None:
    log = tmp_path / "tank.csv"
    log.write_text("timer,pump\n" + "".join(f"{k % 7},{k % 3}\n" for k in range(30)))
    assert 'POSITIONS = ("timer",)' in log_text(str(tmp_path / "tank.py"), log)


def test_a_log_with_fewer_commands_than_positions_runs(folder):
    rows = "".join(f"{0.1 * k:.1f},{k % 7},{k % 5},{k % 3}\n" for k in range(30))
    Path("log.csv").write_text("time,left,right,pump\n" + rows)
    assert New(Path("my_robot.py"), csv=Path("log.csv")).run() == 0
    found = find_robot("my_robot.py:task", approve=True)
    robot = found.make(seed=0)
    assert len(found.task.spec.layout.commands) == 1
    assert robot.measured().shape == (2,)
    robot.close()


def test_a_slow_process_with_a_pump_that_only_pushes(tmp_path: Path) -> None:
    """Neutral is the pump at rest, not half of it; references take a trajectory for the whole range."""
    (tmp_path / "slow_tank.py").write_text(
        "import gymnasium, numpy as np\n"
        "from firsthand.robots.servo_axes import ServoAxes\n"
        "class Tank(ServoAxes):\n"
        "    dt = 20.0\n"
        "    def __init__(self):\n"
        "        super().__init__(\n"
        "            low=[0.0], high=[3.0], speed=0.01, period_s=20.0, command_low=0.0, command_high=1.0)\n"
        "        self.observation_space = gymnasium.spaces.Box(0.0, 3.0, (2,))\n"
        "gymnasium.register(id='SlowTank-v0', entry_point=Tank)\n"
    )
    text = gymnasium_text(str(tmp_path / "tank.py"), "slow_tank:SlowTank-v0")
    assert "neutral=0.0,  # EDIT" in text
    assert "rate=0.0015,  # EDIT" in text
    assert "neutral=" not in gymnasium_text(str(tmp_path / "other.py"), "Pendulum-v1")
