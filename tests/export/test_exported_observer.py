"""Exported observers are the observer: C by gcc, ONNX by onnxruntime, and what a run's export holds."""

import ctypes
import dataclasses
import itertools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from firsthand.cli import main
from firsthand.errors import UserError
from firsthand.export import ModelCard, write_export
from firsthand.export.accuracy import (
    Observations,
    exact_observations,
    observer_tolerance,
    random_inputs,
    random_observations,
)
from firsthand.export.c_source import c_files, identifier
from firsthand.export.onnx_graph import CARRIED, observer_model
from firsthand.logs.episodes import read_run
from firsthand.logs.mcap import read_mcap
from firsthand.models import Controller, Dynamics, Observer, Policy
from firsthand.robots.description import ROBOT_DESCRIPTION
from firsthand.robots.registry import find_robot
from firsthand.runs import RunFolder
from firsthand.tasks import excavator_task
from firsthand.training import TrainingConfig
from firsthand.training.run import Run
from firsthand_onboard import ControlSpec, NumpyObserver, NumpyPolicy, load_controller
from firsthand_onboard.gate_limits import GateLimits
from firsthand_onboard.loop import Executor
from firsthand_onboard.observer import (
    ObserverParameters,
    ObserverSettings,
    ObserverState,
    correct,
    find_fault,
    num_blocks,
    predict_state,
    predicted_entries,
    register_gain,
    register_taps,
    start,
)
from firsthand_onboard.timing import LockStep
from readings import Readings

STEPS = 3000
MISSING, NO_COMMAND, CLIPPED, RESTARTED, LOST = 1, 2, 4, 8, 16


def lively_observer(spec: ControlSpec, hidden: tuple[int, ...]) -> NumpyObserver:
    """Near the register, with every part of it used."""
    rng, layout = np.random.default_rng(0), spec.layout
    sizes = (layout.size + layout.num_commands, *hidden, len(predicted_entries(spec)))
    layers = tuple(
        (rng.normal(size=(n, m)) / np.sqrt(m), 0.1 * rng.normal(size=n)) for m, n in itertools.pairwise(sizes)
    )
    blocks, unit = num_blocks(spec), np.asarray(spec.scales.change_scale)
    gain = 0.5 * np.asarray(register_gain(spec)) + 0.1 * rng.normal(size=(blocks, *(layout.num_measured,) * 2))
    taps = np.asarray(register_taps(spec)) + 0.2 * rng.normal(size=(blocks, len(layout.velocity)))
    given = ObserverParameters(layers, 0.5 * unit[list(predicted_entries(spec))], gain, taps, 0.5 * unit)
    return NumpyObserver(spec, given, ObserverSettings.of(spec))


@pytest.fixture(scope="module", params=["excavator", "toy"])
def spec(request, toy_spec) -> ControlSpec:
    """With velocities, and without."""
    return excavator_task().spec if request.param == "excavator" else toy_spec


@pytest.fixture(scope="module")
def observer(spec) -> NumpyObserver:
    return lively_observer(spec, (128, 128) if spec.robot == "excavator" else (5,))


@pytest.fixture(scope="module")
def policy(spec) -> NumpyPolicy:
    return Controller(Policy.random(spec, key=jax.random.key(3), last_gain=1.0)).for_robot().policy


@pytest.fixture(scope="module")
def card(spec, policy, observer) -> ModelCard:
    return ModelCard.of(spec, policy.layers, run="a */ run", episode=3, tracking_error=0.012, observer=observer)


@pytest.fixture(scope="module")
def sources(spec, policy, observer, card, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("c")
    for name, text in c_files(spec, policy.layers, card, observer).items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def library(spec, sources) -> ctypes.CDLL:
    compiler = shutil.which("gcc") or pytest.skip("there is no gcc on this machine")
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wdouble-promotion", "-Werror", "-O3"]
    source, target = sources / f"{identifier(spec.robot)}_policy.c", sources / "policy.so"
    subprocess.run([compiler, *strict, "-fPIC", "-shared", source, "-lm", "-o", target], check=True)
    return ctypes.CDLL(str(target))


def observer_struct(spec: ControlSpec) -> type[ctypes.Structure]:
    counts = ctypes.c_int * spec.layout.num_measured

    class CObserver(ctypes.Structure):
        _fields_ = (
            ("state", ctypes.c_float * spec.layout.size),
            ("clipped", counts),
            ("missing", counts),
            ("restarts", counts),
        )

    return CObserver


def pointer(array: np.ndarray) -> Any:
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


class Compiled:
    """The compiled observer, as `NumpyObserver`."""

    def __init__(self, spec: ControlSpec, library: ctypes.CDLL) -> None:
        self.memory, self.name, self.library = observer_struct(spec)(), identifier(spec.robot), library

    def start(self, measured: np.ndarray, command: np.ndarray) -> None:
        call = getattr(self.library, f"{self.name}_observer_start")
        call(ctypes.byref(self.memory), pointer(measured), pointer(command))

    def step(self, command: np.ndarray, measured: np.ndarray) -> int:
        call = getattr(self.library, f"{self.name}_observer_step")
        return call(ctypes.byref(self.memory), pointer(command), pointer(measured))

    @property
    def carry(self) -> ObserverState:
        found = (np.ctypeslib.as_array(getattr(self.memory, name)).copy() for name in ("state", *CARRIED))
        return ObserverState(*found)

    @carry.setter
    def carry(self, given: ObserverState) -> None:
        for name in ("state", *CARRIED):
            np.ctypeslib.as_array(getattr(self.memory, name))[:] = getattr(given, name)


def worst(spec: ControlSpec, found: np.ndarray, expected: np.ndarray) -> float:
    """In change scales."""
    unit, start = np.tile(np.asarray(spec.scales.change_scale), num_blocks(spec)), spec.layout.command_start
    return float(np.max(np.abs(found[..., :start] - expected[..., :start]) / unit))


def expected_status(
    spec: ControlSpec, observer: NumpyObserver, given: Observations, after: ObserverState
) -> np.ndarray:
    """The status that each step should have."""
    layers, change_scale, *_ = observer.parameters
    clipped = []
    for state, command, measured in zip(given.carry.state, given.commands, given.measured, strict=True):
        predicted = predict_state(spec, layers, change_scale, state, command)
        clipped.append(correct(spec, observer.parameters, observer.settings, predicted, measured).clipped)
    parts = (
        (~np.isfinite(given.measured), MISSING),
        (np.stack(clipped), CLIPPED),
        (after.restarts > 0, RESTARTED),
        (after.missing > observer.settings.max_missing, LOST),
    )
    return np.sum([value * part.any(axis=1) for part, value in parts], axis=0)


@pytest.fixture(scope="module")
def given(spec, observer) -> Observations:
    return random_observations(spec, observer, STEPS, seed=5)


@pytest.fixture(scope="module")
def expected(spec, observer, given) -> ObserverState:
    """In double precision."""
    return exact_observations(spec, observer, given)


def test_the_steps_that_are_compared_have_everything_in_them(given, expected, observer):
    restarted = expected.restarts > 0
    assert (~np.isfinite(given.measured)).mean() == pytest.approx(0.1, abs=0.02)
    assert (expected.clipped > 0).mean() > 0.1
    assert (restarted & (given.carry.missing <= observer.settings.max_missing)).sum() > 50
    assert (restarted & (given.carry.missing > observer.settings.max_missing)).sum() > 50
    assert (expected.missing > observer.settings.max_missing).any()


def test_the_compiled_observer_is_the_observer(spec, observer, card, library, given, expected):
    compiled, rows, statuses = Compiled(spec, library), [], []
    for *carry, command, measured in zip(*given.carry, given.commands, given.measured, strict=True):
        compiled.carry = ObserverState(*carry)
        statuses.append(compiled.step(command, measured))
        rows.append(compiled.carry)
    found = ObserverState(*(np.stack(part) for part in zip(*rows, strict=True)))
    assert worst(spec, found.state, expected.state) <= card.observer_tolerance
    np.testing.assert_array_equal(
        found.state[:, spec.layout.command_start :], expected.state[:, spec.layout.command_start :].astype(np.float32)
    )
    for name in CARRIED:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_array_equal(statuses, expected_status(spec, observer, given, expected))


def test_the_onnx_observer_is_the_observer(spec, observer, card, given, expected):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(observer_model(spec, observer, card))
    inputs = {"command": given.commands, "measured": given.measured, **given.carry._asdict()}
    state, *counts, lost = session.run(None, inputs)
    assert worst(spec, state, expected.state) <= card.observer_tolerance
    for name, count in zip(CARRIED, counts, strict=True):
        np.testing.assert_array_equal(count, getattr(expected, name))
    np.testing.assert_array_equal(lost, expected.missing > observer.settings.max_missing)
    assert session.get_modelmeta().custom_metadata_map["observer_sha256"] == card.observer_sha256


def test_rounding_of_the_observer_is_measured(spec, observer, given, expected):
    """What is allowed is no more than rounding can explain."""
    single = exact_observations(spec, observer, given, np.float32)
    off = worst(spec, single.state, expected.state)
    assert 0 < off < observer_tolerance(spec, observer) < 1e-3


def spoiled_motion(spec: ControlSpec, observer: NumpyObserver, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Commands and measurements with outliers, a jump, and gaps shorter and longer than the limit."""
    rng, unit, limit = np.random.default_rng(7), np.asarray(spec.scales.change_scale), observer.settings.max_missing
    walk = np.cumsum(rng.normal(size=(steps + 1, spec.layout.num_measured)), axis=0)
    measured = np.asarray(spec.scales.measured_center) + 0.3 * unit * walk
    measured[rng.uniform(size=measured.shape) < 0.05] += 8.0
    measured[40:] += 20 * unit
    measured[60 : 60 + limit, 0] = np.nan
    measured[90 : 92 + limit, -1] = np.inf
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    return rng.uniform(low, high, (steps, len(low))).astype(np.float32), measured.astype(np.float32)


def test_a_motion_in_c_and_onnx_is_the_robots(spec, observer, card, library):
    """From its start through outliers, a jump and gaps; the status tells what happened."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(observer_model(spec, observer, card))
    commands, measured = spoiled_motion(spec, observer, 130)
    compiled, carry = Compiled(spec, library), start(spec, measured[0], commands[0])
    compiled.start(measured[0], commands[0])
    np.testing.assert_array_equal(compiled.carry.state, carry.state)
    observer.begin(carry.state)
    graph, seen = carry, 0
    for command, row in zip(commands, measured[1:], strict=True):
        restarts = observer.restarts.copy()
        observer.observe(command, row)
        status = compiled.step(command, row)
        fed = {name: part[None] for name, part in graph._asdict().items()}
        *after, _ = session.run(None, {**fed, "command": command[None], "measured": row[None]})
        graph = ObserverState(*(part[0] for part in after))
        for found in (compiled.carry, graph):
            assert worst(spec, found.state, observer.state) <= 100 * card.observer_tolerance  # 130 steps of rounding
            for name in CARRIED:
                np.testing.assert_array_equal(getattr(found, name), getattr(observer, name))
        assert bool(status & MISSING) == (not np.isfinite(row).all())
        assert bool(status & RESTARTED) == (observer.restarts > restarts).any()
        assert bool(status & LOST) == bool(find_fault(spec, observer.settings, observer.missing))
        seen |= status
    assert seen == MISSING | CLIPPED | RESTARTED | LOST


def test_an_estimate_that_is_not_finite_restarts(spec, library):
    compiled, (states, _) = Compiled(spec, library), random_inputs(spec, 2, seed=1)
    measured, command = states[:, : spec.layout.num_measured].copy(), np.zeros(spec.layout.num_commands, np.float32)
    compiled.start(np.full_like(measured[0], np.nan), command)
    assert compiled.step(command, measured[1]) == RESTARTED
    np.testing.assert_array_equal(
        compiled.carry.state[: spec.layout.command_start], np.tile(measured[1], num_blocks(spec))
    )
    assert (compiled.carry.restarts == 1).all()


@pytest.mark.parametrize("missing", ["none", "some", "at first"])
def test_the_compiled_policy_sees_the_estimate_as_on_the_robot(spec, policy, observer, card, library, missing):
    """Held against the robot's own loop, with a gate that changes commands behind the policy."""
    layout, rng, steps, name = spec.layout, np.random.default_rng(5), 12, identifier(spec.robot)
    center, unit = np.asarray(spec.scales.measured_center), np.asarray(spec.scales.change_scale)
    measured = (center + unit * rng.normal(size=(steps + 2, layout.num_measured))).astype(np.float32)
    if missing == "some":
        measured[4], measured[7, 1] = np.nan, np.inf
    elif missing == "at first":
        measured[:4, 0] = np.nan
    _, points = random_inputs(spec, 1, seed=3)
    reference = np.repeat(points[0, :1], steps + spec.preview[-1], axis=0)
    wanted, seen = [], []

    def listening(state: np.ndarray, points: np.ndarray) -> np.ndarray:
        wanted.append(policy(state, points))
        seen.append(state.copy())
        return np.nan_to_num(wanted[-1])  # or the gate ends the trajectory

    limits = GateLimits.of(spec, np.asarray(spec.limits.command_high) / 4, dropouts=10, dropouts_of_20=10)
    executor = Executor(spec, Readings(measured), limits, LockStep(spec.period_s))
    executor.begin()
    ran = executor.follow(listening, reference, observer=observer)  # pyright: ignore[reportArgumentType]
    assert ran.ended == "done"

    class Memory(ctypes.Structure):
        _fields_ = (
            ("observer", observer_struct(spec)),
            ("command", ctypes.c_float * layout.num_commands),
            ("moving", ctypes.c_int),
        )

    memory, command = Memory(), np.zeros(layout.num_commands, np.float32)
    getattr(library, f"{name}_begin")(ctypes.byref(memory), pointer(measured[0]), pointer(executor.gate.neutral))
    for k in range(steps):
        points = np.ascontiguousarray(reference[k + np.asarray((0, *spec.preview))])
        status = getattr(library, f"{name}_step")(
            ctypes.byref(memory), pointer(measured[k + 1]), pointer(points), pointer(command)
        )
        estimate = np.ctypeslib.as_array(memory.observer.state)
        np.testing.assert_allclose(estimate, seen[k], atol=1e-4, rtol=1e-5)
        np.testing.assert_allclose(command, wanted[k], atol=1e-3)
        assert bool(status & MISSING) == (not np.isfinite(measured[k + 1]).all())
        assert bool(status & NO_COMMAND) == (not np.isfinite(command).all()) == (missing == "at first" and k < 3)
        getattr(library, f"{name}_applied")(ctypes.byref(memory), pointer(ran.commands[k]))


def test_the_test_vectors_notice_a_changed_observer(spec, sources, library, tmp_path):
    """A gain, a weight of the model, and what counts as clipped."""
    name = identifier(spec.robot)

    def check(text: str) -> int:
        (tmp_path / "changed.c").write_text(text)
        files = [tmp_path / "changed.c", sources / f"{name}_policy_test.c"]
        strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{sources}"]
        subprocess.run(["gcc", *strict, *files, "-lm", "-o", tmp_path / "check"], check=True)
        return subprocess.run([tmp_path / "check"], capture_output=True, check=False).returncode

    text = (sources / f"{name}_policy.c").read_text()
    assert check(text) == 0
    for table in (" gain[", "model_weight0[", " limit["):
        at = text.index("{", text.index(table)) + 6
        assert check(text[:at] + "9" + text[at:].removeprefix("-")) == 1


def test_a_policy_without_an_observer_has_none_in_c(toy_spec):
    policy = Policy.random(toy_spec, key=jax.random.key(1))
    card = ModelCard.of(toy_spec, policy.layers, run="a run", episode=1, tracking_error=None)
    header = c_files(toy_spec, policy.layers, card)["toy_policy.h"]
    assert "#define TOY_HAS_OBSERVER 0" in header
    assert "_observer" not in header
    assert "No observer: the policy sees the measurements themselves." in header


# From a run's folder


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Two episodes, the second with an observer."""
    path = tmp_path_factory.mktemp("runs") / "small"
    robot = find_robot("excavator").make()
    spec = robot.task.spec
    config = TrainingConfig.of("excavator", "paper", episodes=2)
    policy = Policy.random(spec, key=jax.random.key(0))
    observer = Observer.register(Dynamics.random(spec, (8,), key=jax.random.key(1)))
    goals = robot.task.sample_goals(np.random.default_rng(0), robot.measured(), 2)
    described = {**config.as_dict(), ROBOT_DESCRIPTION: robot.description().as_dict()}
    with RunFolder.create(path, described, provenance={}) as folder:
        for episode, controller in ((1, Controller(policy)), (2, Controller(policy, observer))):
            record = robot.run_episode(controller, goals)
            folder.save_episode(episode, {**record.arrays(), **controller.arrays()}, {})
    return path


def test_a_run_gives_the_observer_with_its_policy(run):
    read = Run.open(run)
    assert read.policy(1).observer is None
    observer = read.policy(2).observer
    assert observer is not None
    assert observer.settings == ObserverSettings.of(read.description.spec)


def test_trajectories_follow_each_other_in_a_log_also_where_the_starts_are_estimates(run, tmp_path):
    file, _ = write_export(run, "mcap", tmp_path)
    spec = Run.open(run).description.spec
    for log in (read_mcap(file, spec), read_run(run, spec)):
        steps = [len(series.commands) for series in log.series]
        assert steps == [2 * spec.reference.steps] * 2


def test_every_format_has_the_observer(run, tmp_path):
    written = {kind: write_export(run, kind, tmp_path, episode=2) for kind in ("c", "onnx", "safetensors")}
    assert [path.name for path in written["onnx"]] == [
        "excavator_policy.onnx",
        "excavator_observer.onnx",
        "excavator_policy.onnx.md",
    ]
    assert "excavator_observer_step" in (tmp_path / "excavator_policy.c").read_text()
    assert load_controller(tmp_path / "excavator_policy.safetensors").observer is not None
    for kind in written:
        text = (tmp_path / f"excavator_policy.{kind}.md").read_text()
        assert "predicted for up to 12 steps" in text
        assert "SHA-256 of the observer" in text


def test_an_older_observer_does_not_stay_beside_a_policy_without_one(run, tmp_path):
    write_export(run, "onnx", tmp_path, episode=2)
    write_export(run, "onnx", tmp_path, episode=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["excavator_policy.onnx", "excavator_policy.onnx.md"]


def test_an_observer_asked_of_a_policy_without_one_is_refused(run, tmp_path):
    with pytest.raises(UserError) as raised:
        write_export(run, "c", tmp_path, episode=1, needs_observer=True)
    assert str(raised.value) == f"the policy of episode 1 of {run} ran without an observer."
    with pytest.raises(UserError, match="--observer is for policies"):
        write_export(run, "mcap", tmp_path, needs_observer=True)
    assert list(tmp_path.iterdir()) == []
    assert write_export(run, "c", tmp_path, episode=2, needs_observer=True)


def test_the_command_line_refuses_it_with_exit_code_2(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(name, os.environ.get(name, "0"))  # main() sets them; this restores them
    with pytest.raises(SystemExit) as raised:
        main(["export", str(run), "--episode", "1", "--out", str(tmp_path / "out"), "--observer"])
    assert raised.value.code == 2
    assert "ran without an observer." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_sha_of_the_card_covers_the_observer(spec, policy, observer, card):
    changed = NumpyObserver(spec, observer.parameters, dataclasses.replace(observer.settings, max_missing=7))
    for other in (None, changed):
        given = ModelCard.of(spec, policy.layers, run="a run", episode=3, tracking_error=0.012, observer=other)
        assert given.sha256 != card.sha256
        assert given.observer_sha256 != card.observer_sha256
