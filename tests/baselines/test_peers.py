"""The peers: what each computes, and that each leaves the same books."""

import math
import subprocess
import sys
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from firsthand.controllers.pi import PIController, identify_axes
from firsthand.errors import UserError
from firsthand.robots.simulated import SimulatedRobot
from firsthand_lab.baselines import compare, pid, rows
from firsthand_lab.baselines.ledger import CURVES, FACTS, MARKS, PATHS, peak_memory_mb
from firsthand_lab.baselines.registry import OURS, PEERS, select_peers
from firsthand_lab.baselines.sb3 import FROM_SBX
from firsthand_lab.baselines.setup import plant_and_task
from firsthand_lab.baselines.view import RobotView
from firsthand_lab.experiments import Result, Size, files, worker
from firsthand_lab.experiments.study import Study


@pytest.fixture(scope="module", autouse=True)
def compile_quickly() -> Iterator[None]:
    """What is computed here is small; how fast does not matter."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def test_pid_says_beforehand_what_it_cannot_do():
    with pytest.raises(UserError, match="episodes is 8, but pid needs at least"):
        PEERS["pid"].require(plant_and_task("excavator")[1], 8)
    for robot in ("excavator", "soft-arm"):
        PEERS["pid"].require(plant_and_task(robot)[1], 40)


@pytest.mark.slow
def test_the_engineers_controller_follows():
    """Identified and steered for an episode: a few centimetres, where standing still has half a metre."""
    plant, task = plant_and_task("excavator")
    found = identify_axes(SimulatedRobot(plant, task, seed=0), task)
    assert 60 < found.robot_time_s < 600
    view = RobotView(plant, task, seed=0)
    pid.follow_episode(view, PIController(task.spec, found.axes, 1.5))
    assert view.errors[0] < 0.04


def test_unknown_peers_are_answered_with_the_known_ones():
    with pytest.raises(UserError, match=r"'ppp' \(did you mean 'ppo'\?\); known are pid, deepc, koopman"):
        select_peers("pid,ppp")
    with pytest.raises(UserError, match="empty"):
        select_peers(" , ")
    assert [peer.name for peer in select_peers("pid,ours,pid")] == [OURS, "pid"]


def write_books(folder, errors, *, computing=1.0, random_m=0.02):
    folder.mkdir(parents=True)
    count = len(errors)
    episodes = np.arange(1, count + 1)
    columns = {"episode": episodes, "tracking_error": errors, "computing_s": np.full(count, computing)}
    files.write_csv(folder / CURVES, {**columns, "updates": 10 * episodes})
    tested = np.asarray([e for e in compare.TESTED if e <= count] or [count])
    error = random_m * np.sqrt(count / tested)
    test = {"episode": tested, "random_m": error, "shapes_m": error, "act_ms": np.full(len(tested), 0.5)}
    test["at_limit"] = np.full(len(tested), 0.25)
    files.write_csv(folder / MARKS, {**test, "random_max_m": 5 * error, "shapes_max_m": 5 * error})
    path = np.stack([np.linspace(4, 6, 50), np.full(50, 1.5)], axis=1)
    files.write_arrays(folder / PATHS, {"line.reference": path, "line.path": path + random_m})
    files.write_json(folder / FACTS, {"parameters": 5, "memory_mb": 100, "setting": "none"})


def test_the_table_says_what_the_books_say(tmp_path):
    _, task = plant_and_task("excavator")
    peers = select_peers("ppo")
    comparison = compare.PeerComparison("excavator", task, peers, 40)
    results = []
    for job in comparison.jobs(Size("full", 2)):
        ours = job.name.startswith(OURS)
        errors = 1.0 / np.arange(1, 41) ** (2.0 if ours else 0.5)
        write_books(tmp_path / job.id, errors, computing=2.0, random_m=0.01 if ours else 0.16)
        results.append(Result(job, tmp_path / job.id))
    finding = comparison.conclude(Size("full", 2), results)
    table = finding.tables["table"]
    assert table["random_m"] == [0.01, 0.16]
    # 1/n² is below 10 cm from the fourth episode on, 1/√n never within forty.
    minutes = task.episode_s / 60
    assert table["robot_min_to_10_cm"][0] == pytest.approx(4 * minutes)
    assert math.isnan(table["robot_min_to_10_cm"][1])
    assert table["computing_s_per_robot_hour"][0] == pytest.approx(2.0 / task.episode_s * 3600)
    # 0.16 √(40/n) = 1 cm after 10 240 episodes.
    assert f"about {10_240 * task.episode_s / 3600:.2g} robot hours" in finding.text
    assert "extrapolated" in finding.text
    assert any("× 16" in row.measured for row in finding.rows)
    # After 24 episodes both have √(40/24) times as much: 16 is more than the goals of 2 and 3.
    assert table["early"] == [24, 24]
    assert table["early_random_m"] == pytest.approx([0.01 * (40 / 24) ** 0.5, 0.16 * (40 / 24) ** 0.5])
    goals = [row.paper for row in finding.rows if "best peer (PPO)" in row.quantity]
    assert goals == ["≥ 2 (goal)", "≥ 3 (goal)"]
    assert table["at_limit"] == [0.25, 0.25]
    assert finding.summary[-1]["at a limit"] == ["25 %", "25 %"]
    assert finding.summary[1]["random"] == ["1.29", "20.7"]
    assert set(finding.figures) == {"curves", "paths"}


def test_a_folder_takes_more_peers_and_seeds_and_shows_what_has_only_begun(tmp_path):
    _, task = plant_and_task("excavator")

    def study(peers, seeds):
        comparison = compare.PeerComparison("excavator", task, select_peers(peers), 40)
        return compare.PeerStudy(tmp_path / "study", comparison, Size("full", seeds))

    def ran(opened, job, errors):
        write_books(opened.folder(job), errors)
        files.write_json(opened.folder(job) / files.DONE, {"core_seconds": 1.0, "commit": "none"})

    with study("pid", 1) as first:
        for job in first.jobs:
            ran(first, job, np.full(40, 0.02))
        assert first.conclude().tables["table"]["controller"] == ["ours (fast)", "PI + feed-forward"]
    with study("ppo,tdmpc2:default", 2) as second:
        for job in second.jobs:
            if job.name.startswith("ppo"):
                ran(second, job, np.full(40, 0.5))
            if job.name.startswith("tdmpc2"):  # killed in its eighth episode, before any test
                write_books(second.folder(job), np.full(7, 0.3))
                (second.folder(job) / MARKS).unlink()
        finding = second.conclude()
    table = finding.tables["table"]
    assert table["controller"] == ["ours (fast)", "PI + feed-forward", "PPO", "TD-MPC2, default"]
    assert table["seeds"] == [1, 1, 2, 1]
    assert table["episodes"] == [40, 40, 40, 7]
    assert "× 15.0 (30 cm)" in [row.measured for row in finding.rows]
    assert finding.summary[0]["random"][-1] == "–"
    said = (second.path / "finding.md").read_text()
    assert "--peers ppo --episodes 40 --seeds 2; " in said
    assert "--peers pid,tdmpc2:default --episodes 40 --seeds 1" in said
    assert table["learning_m"] == [0.02, 0.02, 0.5, 0.3]
    runs = finding.tables["runs"]
    assert runs["finished"] == [1, 1, 1, 1, 0]
    assert runs["commit"] == [*["none"] * 4, ""]
    with pytest.raises(UserError, match="no episode of ours in a comparison of 20 episodes"):
        compare.PeerStudy(
            tmp_path / "study", compare.PeerComparison("excavator", task, select_peers("ppo"), 20), Size("full", 1)
        ).conclude()


def test_a_comparison_in_which_nothing_has_been_tested_yet(tmp_path):
    _, task = plant_and_task("excavator")
    study = compare.PeerStudy(
        tmp_path / "study", compare.PeerComparison("excavator", task, select_peers("ppo"), 40), Size("full", 1)
    )
    with study:
        folder = study.folder(study.jobs[0])
        write_books(folder, np.full(2, 0.3))
        for name in (MARKS, PATHS, FACTS):
            (folder / name).unlink()
        finding = study.conclude()
    assert set(finding.figures) == {"curves"}
    assert finding.summary[0]["episodes"] == ["2"]


def test_a_robot_file_that_has_changed_is_another_robot(tmp_path, monkeypatch):
    _, task = plant_and_task("excavator")

    def job():
        comparison = compare.PeerComparison("my_robot.py:arm", task, select_peers("ppo"), 40)
        assert comparison.name == "compare-my_robot-arm"
        return comparison.job(PEERS["ppo"], 0, Size("full", 1))

    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_robot.py").write_text("arm = 1\n")
    before = job()
    assert job().id == before.id
    assert before.parameters["robot"] == f"{tmp_path / 'my_robot.py'}:arm"
    (tmp_path / "my_robot.py").write_text("arm = 2\n")
    assert job().id != before.id


def test_memory_is_that_of_the_process_alone():
    """A small program started by this large one has not had this one's memory."""
    program = "print('here', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline()  # it is the small program now, not yet a copy of this one
        assert 1 < peak_memory_mb(child.pid) < 60 < peak_memory_mb()
        child.stdin.write(b"\n")


def test_the_paths_are_those_of_the_seed_in_the_middle(tmp_path):
    _, task = plant_and_task("excavator")
    comparison, results = compare.PeerComparison("excavator", task, select_peers("ppo"), 40), []
    for job, error in zip(comparison.jobs(Size("full", 3)), (0.3, 0.1, 0.2, 3.0, 2.0, 1.0), strict=True):
        write_books(tmp_path / job.id, np.full(40, error), random_m=error)
        results.append(Result(job, tmp_path / job.id))
    figure = comparison.conclude(Size("full", 3), results).figures["paths"]
    titles = " ".join(axes.get_title("left") or axes.get_title() for axes in figure.axes)
    assert f"{100 * 2**0.5 * 0.2:.1f} cm" in titles
    assert f"{100 * 2**0.5 * 2:.1f} cm" in titles


def test_unfinished_seeds_are_compared_where_all_of_them_are(tmp_path):
    _, task = plant_and_task("excavator")
    comparison, results = compare.PeerComparison("excavator", task, select_peers("ppo"), 40), []
    for job, length in zip(comparison.jobs(Size("full", 3))[3:], (23, 11, 3), strict=True):
        write_books(tmp_path / job.id, np.full(length, 0.3), random_m=0.1)
        results.append(Result(job, tmp_path / job.id))
    row = rows.row_of(PEERS["ppo"], results[:2], task)
    assert (row.episodes, row.tested, row.updates) == (11, 10, 110)
    assert row.random_m == pytest.approx(np.median([0.1 * np.sqrt(23 / 10), 0.1 * np.sqrt(11 / 10)]))
    row = rows.row_of(PEERS["ppo"], results, task)
    assert (row.episodes, row.tested) == (3, 0)  # the third has a test at 3 only, which the others have not
    assert math.isnan(row.random_m)
    assert rows.extrapolate(results[1:], 0.01, task) == ""


def test_sudden_drops_are_counted_after_the_tenth_episode():
    errors = np.full(30, 0.02)
    errors[[3, 15, 20]] = 0.2
    assert rows.drops(errors) == 2


def test_every_peer_has_a_runner_that_exists():
    from importlib import import_module

    for peer in PEERS.values():
        module, _, function = peer.runner.partition(":")
        assert callable(getattr(import_module(module), function)), peer.name


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ours", "paper", "still", "pid", "deepc", "koopman", "neural-mpc", "residual", "imagination", "tdmpc2"]
)
def test_a_peer_leaves_its_books(name, tmp_path):
    _, task = plant_and_task("excavator", tiny=True)
    comparison = compare.PeerComparison("excavator", task, select_peers(name), 2)
    with Study(tmp_path / "study", comparison, Size("tiny", 1)) as study:
        job = study.jobs[-1]
        worker.perform(study.prepare(job), lambda done, note="": None)
        result = Result(job, study.folder(job))
    row = rows.row_of(PEERS[name], [result], task)
    assert np.isfinite([row.random_m, row.shapes_m, row.computing_s, row.act_ms, row.at_limit, row.memory_mb]).all()
    assert (row.updates > 0) == (name not in ("pid", "deepc", "koopman", "still"))
    assert list(result.csv(CURVES)["episode"]) == [1, 2]


@pytest.mark.slow
def test_an_interrupted_tdmpc2_goes_on_to_the_same_end(tmp_path, monkeypatch):
    from firsthand_lab.baselines.tdmpc2 import job

    parameters = {"robot": "excavator", "seed": 0, "episodes": 2, "marks": [1, 2], "setting": "tiny"}
    job.run(parameters, tmp_path / "whole", lambda done, note="": None)
    monkeypatch.setattr(job, "CHECKPOINT_S", 0.0)
    write, written = files.write_arrays, []

    def write_and_stop(path, *content):
        write(path, *content)
        written.append(path.name)
        if path.name == "state.safetensors" and written.count(path.name) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_arrays", write_and_stop)
    with pytest.raises(KeyboardInterrupt):
        job.run(parameters, tmp_path / "cut", lambda done, note="": None)
    job.run(parameters, tmp_path / "cut", lambda done, note="": None)
    for name, columns in ((CURVES, ("episode", "tracking_error", "updates")), (MARKS, ("random_m", "shapes_m"))):
        whole, cut = (files.read_csv(tmp_path / which / name) for which in ("whole", "cut"))
        for column in columns:
            np.testing.assert_array_equal(cut[column], whole[column])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "sac", "crossq", "droq", "simba", "mbpo"])
def test_the_peers_of_stable_baselines_leave_their_books(algorithm, tmp_path):
    pytest.importorskip("stable_baselines3", reason="the extra `peers` is not installed")
    if algorithm in FROM_SBX:
        pytest.importorskip("sbx", reason="the extra `peers` is not installed")
    test_a_peer_leaves_its_books(algorithm, tmp_path)


def test_varied_machines_differ_as_their_numbers_say():
    from firsthand_lab.baselines.earlier import SPREAD, family

    plant, _ = plant_and_task("excavator")
    machines, numbers = family(plant, 5, seed=0)
    np.testing.assert_allclose(machines.plant.payload_kg, 450 * (numbers[:, 0] + 1), rtol=1e-6)
    np.testing.assert_allclose(machines.stronger.reshape(5, 8), 1 + SPREAD * numbers[:, 2:], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("approach", ["simulator", "randomised"])
def test_an_earlier_approach_runs_through(approach, tmp_path):
    pytest.importorskip("stable_baselines3", reason="the extra `peers` is not installed")
    from firsthand_lab.baselines import earlier
    from firsthand_lab.experiments.learning import SPEEDS

    parameters = {"approach": approach, "seed": 0, "steps": 3000, "speeds": [2.0], "tiny": True}
    earlier.run(parameters, tmp_path, lambda done, note="": None)
    table = files.read_csv(tmp_path / SPEEDS)
    assert list(table["reference"]) == ["random", "together"]
    assert np.isfinite(table["mean_error"]).all()
