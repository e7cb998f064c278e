"""The report of real, tiny runs: what it holds, that it stands alone, and what it does with bad or missing data."""

import base64
import dataclasses
import json
import re
import shutil
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from firsthand.cli.results import evaluate_kept, finish
from firsthand.errors import UserError
from firsthand.evaluation.oracle import OracleResult
from firsthand.export import write_export
from firsthand.plants.base import AbstractPlant
from firsthand.plants.probes import ScalarPlant
from firsthand.report import figures_of, write_comparison, write_report
from firsthand.report.animation import choose_episodes, write_animation
from firsthand.report.gather import gather, reproduction
from firsthand.report.page import render
from firsthand.robots import registry
from firsthand.robots.description import ROBOT_DESCRIPTION
from firsthand.runs import RunFolder
from firsthand.tasks import excavator_task
from firsthand.training import FolderRecorder, Trainer, TrainingConfig
from firsthand.training.origin import InitFrom, TakenLog
from firsthand.training.run import Run

HOSTILE = "excavator<script>alert('$x$')</script>&\"quoted\""
"""The name of a robot that must not become a tag, an attribute or a formula."""
FIGURES = ("learning", "shapes", "episodes", "poses", "time", "health")
SMALL = {"model.steps": 5, "model.hidden": (8,), "policy_step.cg_iterations": 3}


class Drives(AbstractPlant):
    """Four joints that go as fast as they are told: cheap to compile, and with the excavator's measurements."""

    @property
    def period_s(self):
        return 0.04

    @property
    def num_commands(self):
        return 4

    @property
    def num_measured(self):
        return 8

    def reset(self, position):
        return jnp.concat([position, jnp.zeros(4)])

    def step(self, state, command, *, key):
        return jnp.concat([state[:4] + 0.04 * command, command])

    def measure(self, state, *, key):
        return state


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects what the tests ask for."""

    VOID = ("meta", "img", "br", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def train(path: Path, robot: str, episodes: int) -> Path:
    config = TrainingConfig.of(robot, "paper", episodes=episodes, seed=3, changes=SMALL)
    provenance = {"started_utc": "2026-05-04T13:30:00+00:00", "argv": ["</pre><script>alert(2)</script>"]}
    made = registry.find_robot(robot, approve=True).make(seed=3)
    with RunFolder.create(
        path, {**config.as_dict(), ROBOT_DESCRIPTION: made.description().as_dict()}, provenance=provenance
    ) as run:
        Trainer(made, config, FolderRecorder(run)).train()
    if not made.hardware:
        evaluate_kept(Run.open(path), made, None)
    return path


@pytest.fixture(scope="module")
def robots(make_probe_task, tmp_path_factory):
    """Something like a small excavator, with a hostile name, and a probe whose tracked output has one entry."""

    def probe_task():
        return make_probe_task(
            measured=1,
            command_memory=1,
            steps=8,
            preview=(1, 2),
            command_limit=1.0,
            length_scale=1.0,
            change_weight=0.01,
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))  # no oracle of the user's
        small = partial(excavator_task, trajectories=2, steps=20, hidden=(8,))
        patch.setitem(registry.ROBOTS, HOSTILE, registry.BuiltIn(small, lambda payload_kg: Drives()))
        patch.setitem(registry.ROBOTS, "probe", registry.BuiltIn(probe_task, lambda payload_kg: ScalarPlant()))
        yield


@pytest.fixture(scope="module")
def finished(robots, tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("runs") / "two", HOSTILE, 2)


@pytest.fixture(scope="module")
def page(finished) -> str:
    path = write_report(finished)
    assert path == finished / "report" / "index.html"
    return path.read_text("utf-8")


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def words_of(run: Path) -> str:
    """The text of a run's page. Its figures are made, but saving them, which takes the most time, is left out."""
    report = gather(run)
    return Page(render(report, dict.fromkeys(figures_of(report), b""))).text


def lines(run: Path) -> list[dict]:
    return RunFolder.open(run).read_metrics()


def test_is_one_page_that_needs_nothing_else(page):
    parsed = Page(page)
    assert len([link for link in parsed.links if link.startswith("data:image/svg+xml;base64,")]) == len(FIGURES)
    assert all(link.startswith("data:") for link in parsed.links)
    assert not {"script", "link", "iframe", "object"} & set(parsed.tags)
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", page).replace("http-equiv", "")
    assert "@import" not in page
    assert "url(" not in page


def test_headings_come_in_the_agreed_order(page):
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings[:2] == ["Learning", "Circle, square and line"]
    assert headings[2:] == [
        "Random references",
        "The arm along the path",
        "The kept policy over time",
        "The metrics of the paper’s table 1",
        "Health",
        "Signals",
        "Configuration and provenance",
    ]


def test_tells_the_numbers_of_the_metrics(page, finished):
    text, rows = Page(page).text, lines(finished)
    first, last = (100 * row["tracking_error"] for row in rows)
    for error in (first, last):
        assert f"{error:.{2 if error < 10 else 1}f} cm" in text
    assert "2 episodes · 3 s of robot time · started 2026-05-04 13:30 UTC" in text
    assert "0 in 2 episodes" in text
    assert "η/(2√ε) = 1.118" in text
    assert f"{rows[-1]['limit_hits']} of 40 steps in the last episode" in text
    assert "52.3" in text  # the paper's column
    for words in ("--preset paper --episodes 2 --seed 3", "--model.steps 5", "--model.hidden 8"):
        assert words in text


def test_gives_advice_as_text(copied):
    assert "Advice begins with episode 3." in words_of(copied)
    row = lines(copied)[-1]
    late = {"velocity_delay": 1.0, "late_velocities": "<b>arm</b>", "closed_loop_growth": 1.05}
    more = [{**row, "episode": episode, **late} for episode in range(3, 7)]
    with (copied / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in more)
    text = words_of(copied)
    assert "Velocities of <b>arm</b> arrive about one period late" in text
    assert "The model believes the closed loop unstable" in text


def test_figures_lie_beside_the_page(page, finished):
    for name in FIGURES:
        assert (finished / "report" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        svg = (finished / "report" / f"{name}.svg").read_bytes()
        assert b"<svg" in svg
        assert base64.b64encode(svg).decode() in page


def test_hostile_text_stays_text(page):
    parsed = Page(page)
    assert "script" not in parsed.tags
    assert HOSTILE in parsed.text
    assert "</pre><script>alert(2)</script>" in parsed.text


def test_writing_twice_gives_the_same_bytes(page, finished):
    shutil.rmtree(finished / "report")  # the folder is made when it is missing
    assert write_report(finished).read_text("utf-8") == page


@pytest.mark.usefixtures("unrendered")
def test_a_report_is_not_written_through_a_link(copied, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "index.html").write_text("mine")
    for name, write in (("report", write_report), ("export", lambda run: write_export(run, "safetensors"))):
        shutil.rmtree(copied / name, ignore_errors=True)
        (copied / name).symlink_to(precious)
        with pytest.raises(UserError, match=f"{name} is a link, and must be a folder of its own"):
            write(copied)
    assert [file.name for file in precious.iterdir()] == ["index.html"]
    assert (precious / "index.html").read_text() == "mine"


def test_metrics_that_are_null(copied):
    rows = [{name: None for name in row} | {"episode": row["episode"]} for row in lines(copied)]
    (copied / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = words_of(copied)
    assert "– cm tracking error on random references" in text
    assert "robot time not known" in text
    assert "nan" not in re.sub(r"[a-z]*nan[a-z]+", "", text.lower().replace("nan & hutter", ""))


def test_a_run_that_is_being_written(copied):
    """Episode 3 is stored, its metrics are half written, and there is no checkpoint yet."""
    shutil.copy(copied / "episodes" / "000002.safetensors", copied / "episodes" / "000003.safetensors")
    with (copied / "metrics.jsonl").open("a") as file:
        file.write('{"episode": 3, "robot_ti')
    shutil.rmtree(copied / "checkpoints")
    assert "2 episodes · 3 s" in words_of(copied)


@pytest.mark.slow
def test_one_episode_of_a_robot_with_one_output(robots, tmp_path, monkeypatch):
    run = train(tmp_path / "one", "probe", 1)
    text = Page(write_report(run).read_text("utf-8")).text
    assert "random references, the last episode" in text
    assert "Stay and away" in text
    assert "52.3" not in text  # the paper has no such robot
    assert "mean error (cm)" in text
    # The same robot, if what it tracks is an angle.
    path = run / "config.json"
    content = json.loads(path.read_text())
    content["config"][ROBOT_DESCRIPTION]["unit"] = "rad"
    del content["sha256"]
    path.write_text(json.dumps(content))
    text = words_of(run)
    error = lines(run)[0]["tracking_error"]
    assert f"{error:.{3 if error < 1 else 2}f} rad in the first episode" in text
    assert "mean error (rad)" in text
    assert " cm" not in text
    with pytest.raises(UserError, match="in m and rad"):
        write_comparison([run, train(tmp_path / "other", HOSTILE, 1)])


def test_a_run_without_an_episode_is_said_in_one_sentence(robots, tmp_path):
    config = TrainingConfig.of("probe", "paper", episodes=1)
    described = {**config.as_dict(), ROBOT_DESCRIPTION: registry.find_robot("probe").make().description().as_dict()}
    RunFolder.create(tmp_path / "empty", described, provenance={}).close()
    with pytest.raises(UserError, match=r"no finished episode yet, so there is nothing to report\.$"):
        write_report(tmp_path / "empty")


def test_the_oracle_is_shown_and_doubted_where_it_is_beaten(copied):
    run = Run.open(copied)
    kept = run.kept_episode()
    assert kept is not None
    stored = run.evaluation(kept)
    assert stored is not None
    run.save_evaluation(kept, stored.evaluation, OracleResult(random_error=0.0123, shapes_error=1e3, shapes={}))
    text = words_of(copied)
    assert "reaches 1.23 cm" in text
    assert "which is no lower bound" in text


def test_an_animation_shows_what_the_robot_did_from_the_first_to_the_last_episode(finished, tmp_path):
    assert choose_episodes([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) == [1, 2, 5, 10]
    assert choose_episodes([1]) == [1]
    out = write_animation(finished, tmp_path / "learning.gif")
    with Image.open(out) as picture:
        assert picture.format == "GIF"
        assert getattr(picture, "n_frames", 1) > 1
        first = np.asarray(picture.convert("L"))
        picture.seek(picture.tell() + 1)
        assert (np.asarray(picture.convert("L")) != first).any()  # something moves
    with pytest.raises(UserError, match=r"learning.mp4, but must be a .gif file"):
        write_animation(finished, tmp_path / "learning.mp4")


def test_several_runs_on_one_page(finished, copied, tmp_path):
    hostile = copied.rename(copied.with_name("<i>copy"))
    page = write_comparison([finished, hostile], tmp_path / "both.html").read_text("utf-8")
    parsed = Page(page)
    assert all(link.startswith("data:") for link in parsed.links)
    assert len(parsed.links) == 2  # learning curves, and both runs on the references
    assert not {"script", "link", "i"} & set(parsed.tags)
    assert "<i>copy" in parsed.text
    best = 100 * min(row["tracking_error"] for row in lines(finished))
    assert parsed.text.count(f"{best:.{2 if best < 10 else 1}f}") >= 2  # the copy reached the same
    with pytest.raises(UserError, match="given twice"):
        write_comparison([finished, finished])


@pytest.mark.usefixtures("unrendered")
def test_a_machine_is_neither_moved_nor_asked(copied):
    """Nobody listens at the address; a report that connected would wait, and fail."""
    path = copied / "config.json"
    content = json.loads(path.read_text())
    content["config"]["robot"] = f"{HOSTILE}@tcp/127.0.0.1:1"
    content["config"][ROBOT_DESCRIPTION]["kind"] = "machine"
    del content["sha256"]
    path.write_text(json.dumps(content))
    shutil.rmtree(copied / "evaluations")
    page = write_report(copied).read_text("utf-8")
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == [
        "Learning",
        "Random references",
        "The arm along the path",
        "The last trajectory over time",
        "Health",
        "Signals",
        "Configuration and provenance",
    ]
    assert "In episode 2, trajectory 2 the robot was" in Page(page).text
    assert "which moves the machine, adds that to the next report" in Page(page).text


COUNTED = """
from pathlib import Path

import gymnasium
import numpy as np

from firsthand.robots.gymnasium import GymnasiumTask


class Counted(gymnasium.Env):
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    dt = 0.1
    longest = None

    def reset(self, *, seed=None, options=None):
        self.at, self.steps = np.zeros(1), 0
        return self.at.copy(), {}

    def step(self, action):
        with Path(__file__).with_name("steps").open("a") as steps:
            steps.write("x")
        self.at, self.steps = self.at + 0.1 * action, self.steps + 1
        return self.at.copy(), 0.0, self.steps == self.longest, False, {}


class Short(Counted):
    longest = 3


def place(env, position):
    return env.reset()[0]


rest = {"positions": (0,), "position_low": -1.0, "position_high": 1.0, "rate": 0.8, "steps": 8, "trajectories": 2}
rest |= {"command_memory": 1, "preview": (1, 2), "hidden": (8,)}
real = GymnasiumTask(env=Counted, hardware=True, stopping={"lag_s": 0.3}, **rest)
short = GymnasiumTask(env=Short, place=place, evaluation=lambda speed: {"[/x]": np.zeros((30, 1))}, **rest)
"""


@pytest.fixture
def arm(tmp_path) -> Path:
    """A robot file whose environment counts its steps; `short` ends after three of eight."""
    file = tmp_path / "arm.py"
    file.write_text(COUNTED)
    return file


@pytest.mark.usefixtures("unrendered")
def test_no_report_moves_hardware_of_a_robot_file(arm, tmp_path):
    steps = tmp_path / "steps"
    one = train(tmp_path / "one", f"{arm}:real", 1)
    runs = [one, Path(shutil.copytree(one, tmp_path / "two"))]
    moved = steps.read_text()
    assert moved
    write_report(runs[0])
    write_comparison(runs)
    assert steps.read_text() == moved


@pytest.mark.usefixtures("unrendered")
def test_a_run_that_proved_no_policy_is_finished_all_the_same(arm, tmp_path, capsys):
    run = train(tmp_path / "run", f"{arm}:short", 1)
    assert not (run / "best.safetensors").exists()
    finish(run, registry.find_robot(f"{arm}:short"))
    said = capsys.readouterr()
    assert "No episode has proven a policy" in said.err
    assert "[/x]: only 3 of 30 steps were followed." in said.out
    assert "[/x]: only 3 of 30 steps were followed." in Page((run / "report" / "index.html").read_text("utf-8")).text
    with pytest.raises(UserError, match=r"no episode of .*run has proven a policy yet; give --episode, or evaluate"):
        Run.open(run).kept_policy()


@pytest.mark.usefixtures("unrendered")
def test_a_comparison_says_which_reference_was_not_followed_to_its_end(arm, tmp_path):
    one = train(tmp_path / "one", f"{arm}:short", 1)
    runs = [one, Path(shutil.copytree(one, tmp_path / "two"))]
    with RunFolder.open(runs[1], writer=True) as run:
        run.save_best(run.load_episode(1)[0], {"episode": 1})
    text = Page(write_comparison(runs).read_text("utf-8")).text
    assert "two, [/x]: only 3 of 30 steps were followed." in text
    assert "one, [/x]" not in text


def test_the_command_for_the_same_run_names_what_it_started_from(finished):
    restored = Run.open(finished)
    taken = TakenLog("/logs/a b.csv", "0" * 64, rows=9, taken=8)
    origin = {"init_from": InitFrom("/runs/old", 3, "0" * 64, "model"), "data": (taken,)}
    started = dataclasses.replace(restored, config=dataclasses.replace(restored.config, **origin))
    command = reproduction(started, 2)
    assert command.endswith(" --init-from /runs/old --init model --data '/logs/a b.csv'")
    assert "--init-from" not in reproduction(restored, 2)
