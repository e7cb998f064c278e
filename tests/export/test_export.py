"""Exported policies are the policy: C by gcc, ONNX by onnxruntime, and the log read back."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.export import ModelCard, write_export
from firsthand.export.c_source import c_files, identifier, random_inputs
from firsthand.export.onnx_graph import onnx_model
from firsthand.logs.mcap import read_mcap
from firsthand.models import Policy
from firsthand.plants.excavator import ExcavatorFlow
from firsthand.robots import SimulatedRobot, registry
from firsthand.runs import RunFolder
from firsthand.tasks import excavator_task
from firsthand.training import Trainer, TrainingConfig
from firsthand_onboard.features import initial_state, next_state
from firsthand_onboard.policy import NumpyPolicy, load_policy

INPUTS = 10_000
PARITY = 1e-6
"""Of half a command range."""


@pytest.fixture(scope="module", params=["excavator", "toy"])
def policy(request, toy_spec) -> Policy:
    """A lively policy: with a planar chain of two hidden layers of 128, and with a measured output."""
    spec = excavator_task().spec if request.param == "excavator" else toy_spec
    return Policy.random(spec, key=jax.random.key(3), last_gain=1.0)


def card(policy: Policy) -> ModelCard:
    return ModelCard.of(policy.spec, policy.layers, run="a */ run", episode=3, tracking_error_m=0.012)


def exact(policy: Policy, states: np.ndarray, points: np.ndarray) -> np.ndarray:
    """What the JAX policy says in double precision."""
    with jax.enable_x64(True):
        double = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), policy)
        return np.asarray(jax.jit(jax.vmap(double))(states.astype(np.float64), points.astype(np.float64)))


def worst(policy: Policy, found: np.ndarray, expected: np.ndarray) -> float:
    half = (np.asarray(policy.spec.limits.command_high) - np.asarray(policy.spec.limits.command_low)) / 2
    return float(np.max(np.abs(found - expected) / half))


@pytest.fixture(scope="module")
def sources(policy, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("c")
    for name, text in c_files(policy.spec, policy.layers, card(policy)).items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def library(policy, sources) -> ctypes.CDLL:
    name = identifier(policy.spec.robot)
    compiler = shutil.which("gcc") or pytest.skip("there is no gcc on this machine")
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O3"]
    target = sources / "policy.so"
    subprocess.run(
        [compiler, *strict, "-fPIC", "-shared", sources / f"{name}_policy.c", "-lm", "-o", target], check=True
    )
    return ctypes.CDLL(str(target))


def pointer(array: np.ndarray):
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def test_the_compiled_policy_is_the_policy(policy, library):
    states, points = random_inputs(policy.spec, INPUTS, seed=1)
    found = np.zeros((INPUTS, policy.spec.layout.num_commands), np.float32)
    evaluate = getattr(library, f"{identifier(policy.spec.robot)}_evaluate")
    for i in range(INPUTS):
        evaluate(pointer(states[i]), pointer(points[i]), pointer(found[i]))
    assert worst(policy, found, exact(policy, states, points)) <= PARITY
    assert np.ptp(found, axis=0).min() > 0.5


def test_the_compiled_policy_keeps_its_memory_as_the_robot_does(policy, library):
    """Also when a gate changed a command."""
    spec, name = policy.spec, identifier(policy.spec.robot)
    layout, rng = spec.layout, np.random.default_rng(5)
    numpy_policy = NumpyPolicy(spec, policy.layers)
    memory = np.zeros(layout.size + layout.num_commands + 1, np.float32)
    steps, reference = 12, rng.normal(size=(16, spec.num_outputs)).astype(np.float32)
    center, scale = np.asarray(spec.scales.measured_center), np.asarray(spec.scales.measured_scale)
    measured = (center + 0.3 * scale * rng.normal(size=(steps, layout.num_measured))).astype(np.float32)
    neutral = (np.asarray(spec.limits.command_low) + np.asarray(spec.limits.command_high)) / 2
    state = initial_state(layout, measured[0], neutral.astype(np.float32))
    getattr(library, f"{name}_begin")(pointer(memory), pointer(measured[0]))
    for k in range(steps):
        rows = np.minimum(k + np.asarray((0, *spec.preview)), len(reference) - 1)
        points, command = np.zeros((len(rows), spec.num_outputs), np.float32), np.zeros(layout.num_commands, np.float32)
        getattr(library, f"{name}_points")(pointer(reference), len(reference), k, pointer(points))
        np.testing.assert_array_equal(points, reference[rows])
        getattr(library, f"{name}_step")(pointer(memory), pointer(measured[k]), pointer(points), pointer(command))
        np.testing.assert_allclose(command, numpy_policy(state, points), atol=2e-6)
        if k % 3 == 0:
            command = (0.5 * command).astype(np.float32)
            getattr(library, f"{name}_applied")(pointer(memory), pointer(command))
        if k + 1 < steps:
            state = next_state(layout, state, command, measured[k + 1])


def test_the_test_vector_passes_and_notices_a_changed_weight(policy, sources, library, tmp_path):
    name = identifier(policy.spec.robot)

    def check(source: Path) -> int:
        program = tmp_path / "check"
        files = [source, sources / f"{name}_policy_test.c"]
        subprocess.run(["gcc", "-std=c99", f"-I{sources}", *files, "-lm", "-o", program], check=True)
        return subprocess.run([program], capture_output=True, check=False).returncode

    assert check(sources / f"{name}_policy.c") == 0
    text = (sources / f"{name}_policy.c").read_text()
    at = text.index("{", text.index("weight1[")) + 6
    (tmp_path / "wrong.c").write_text(text[:at] + "9" + text[at:])
    assert check(tmp_path / "wrong.c") == 1


def test_the_onnx_policy_is_the_policy(policy):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(onnx_model(policy.spec, policy.layers, card(policy)))
    states, points = random_inputs(policy.spec, INPUTS, seed=2)
    (found,) = session.run(None, {"state": states, "points": points})
    assert worst(policy, found, exact(policy, states, points)) <= PARITY
    assert session.get_modelmeta().custom_metadata_map["sha256"] == card(policy).sha256


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Two small episodes of a small excavator."""
    path = tmp_path_factory.mktemp("runs") / "small"

    def small():
        return excavator_task(trajectories=2, steps=20, hidden=(8,))

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.ROBOTS, "small digger", registry.BuiltIn(small, lambda payload_kg: ExcavatorFlow()))
        config = TrainingConfig.of("small digger", "paper", episodes=2, model_steps=5)
        with RunFolder.create(
            path, config.as_dict(), provenance={"started_utc": "2026-05-04T13:30:00+00:00"}
        ) as folder:
            Trainer(SimulatedRobot(ExcavatorFlow(), config.make_task()), config, folder).train()
        yield path


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("c", {"excavator_policy.c", "excavator_policy.h", "excavator_policy_test.c", "excavator_policy.md"}),
        ("onnx", {"excavator_policy.onnx", "excavator_policy.md"}),
        ("safetensors", {"excavator_policy.safetensors", "excavator_policy.md"}),
    ],
)
def test_a_policy_leaves_with_its_card(run, tmp_path, kind, files):
    written = write_export(run, kind, tmp_path / "out")
    assert {path.name for path in written} == files == {path.name for path in (tmp_path / "out").iterdir()}
    text = (tmp_path / "out" / "excavator_policy.md").read_text()
    assert "episode 1 of small" in text or "episode 2 of small" in text
    assert "cm" in text


def test_the_exported_file_is_what_the_robot_loads(run, tmp_path):
    (file, _) = write_export(run, "safetensors", tmp_path, episode=2)
    arrays, _ = RunFolder.open(run).load_episode(2)
    loaded = load_policy(file)
    np.testing.assert_array_equal(loaded.layers[0][0], arrays["policy.0.weight"])


def test_the_log_reads_back_as_it_was(run, tmp_path):
    (file,) = write_export(run, "mcap", tmp_path)
    folder = RunFolder.open(run)
    log = read_mcap(file, excavator_task(trajectories=2, steps=20, hidden=(8,)).spec)
    assert len(log.series) == 2  # an episode each: the two trajectories of one follow each other
    assert not log.refused or set(log.refused) == {"nothing was measured one period later"}
    for episode, series in zip((1, 2), log.series, strict=True):
        arrays, _ = folder.load_episode(episode)
        np.testing.assert_allclose(series.commands, arrays["commands"].reshape(-1, 4), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(series.measured[-1], arrays["measured"][-1, -1], rtol=1e-6, atol=1e-7)


def test_bad_input_is_named(run, tmp_path):
    with pytest.raises(UserError, match="There is no format 'onxx'"):
        write_export(run, "onxx", tmp_path)
    with pytest.raises(UserError, match="holds episodes 1 to 2"):
        write_export(run, "c", tmp_path, episode=9)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="file"):
        write_export(run, "c", tmp_path / "file" / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
