"""Exported policies are the policy: C by gcc, ONNX by onnxruntime, and the log read back."""

import ctypes
import dataclasses
import errno
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.export import ModelCard, write_export
from firsthand.export.accuracy import random_inputs, tolerance
from firsthand.export.c_source import c_files, identifier
from firsthand.export.onnx_graph import onnx_model
from firsthand.export.write import controller_and_card
from firsthand.logs import read_log
from firsthand.logs.mcap import read_mcap
from firsthand.models import Policy
from firsthand.plants.excavator import ExcavatorFlow
from firsthand.robots import EpisodeRecord, registry
from firsthand.robots.description import ROBOT_DESCRIPTION
from firsthand.runs import RunFolder, atomic
from firsthand.tasks import excavator_task
from firsthand.training import FolderRecorder, Trainer, TrainingConfig
from firsthand.training.run import Run
from firsthand_onboard.features import initial_state, next_state
from firsthand_onboard.gate_limits import GateLimits
from firsthand_onboard.loop import Executor
from firsthand_onboard.policy import NumpyPolicy
from firsthand_onboard.policy_file import load_policy
from firsthand_onboard.signing import Signer
from firsthand_onboard.timing import LockStep
from readings import Readings

INPUTS = 10_000


@pytest.fixture(scope="module", params=["excavator", "trained", "toy"])
def policy(request, toy_spec) -> Policy:
    """A lively policy: a planar chain and two hidden layers of 128, the same with a high gain, a measured output."""
    if request.param == "trained":
        return high_gain()
    spec = excavator_task().spec if request.param == "excavator" else toy_spec
    return Policy.random(spec, key=jax.random.key(3), last_gain=1.0)


def high_gain() -> Policy:
    """Answers a small error with much of the command range, as training teaches it to."""
    spec = excavator_task().spec
    error, outputs = spec.layout.size, spec.num_outputs
    drawn = Policy.random(spec, key=jax.random.key(3), last_gain=2.0)
    (weight, bias), *others = drawn.layers
    louder = jnp.asarray(weight).at[:, error : error + outputs].multiply(6.0)
    return dataclasses.replace(drawn, layers=((louder, bias), *others))


def card(policy: Policy) -> ModelCard:
    return ModelCard.of(policy.spec, policy.layers, run="a */ run", episode=3, tracking_error=0.012)


def exact(policy: Policy, states: np.ndarray, points: np.ndarray) -> np.ndarray:
    """What the JAX policy says in double precision."""
    with jax.enable_x64(True):
        double = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), policy)
        return np.asarray(jax.jit(jax.vmap(double))(states.astype(np.float64), points.astype(np.float64)))


def worst(policy: Policy, found: np.ndarray, expected: np.ndarray) -> float:
    half = (np.asarray(policy.spec.limits.command_high) - np.asarray(policy.spec.limits.command_low)) / 2
    return float(np.max(np.abs(found - expected) / half))


@pytest.fixture(scope="module")
def allowed(policy) -> float:
    """Of half a command range: rounding in single precision, as the card tells it."""
    return card(policy).tolerance


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


def test_the_compiled_policy_is_the_policy(policy, library, allowed):
    states, points = random_inputs(policy.spec, INPUTS, seed=1)
    found = np.zeros((INPUTS, policy.spec.layout.num_commands), np.float32)
    evaluate = getattr(library, f"{identifier(policy.spec.robot)}_evaluate")
    for i in range(INPUTS):
        evaluate(pointer(states[i]), pointer(points[i]), pointer(found[i]))
    assert worst(policy, found, exact(policy, states, points)) <= allowed
    assert np.ptp(found, axis=0).min() > 0.5


def test_rounding_is_measured_and_grows_with_the_gain(toy_spec):
    """What is allowed is no more than rounding can explain, and at least 1e-6."""
    calm = Policy.random(toy_spec, key=jax.random.key(3), last_gain=0.1)
    assert tolerance(calm.spec, calm.layers) == 1e-6
    policy = high_gain()
    states, points = random_inputs(policy.spec, 100, seed=7)
    single = NumpyPolicy(policy.spec, policy.layers)
    found = np.stack([single(state, preview) for state, preview in zip(states, points, strict=True)])
    off = worst(policy, found, exact(policy, states, points))
    assert 1e-6 < off < tolerance(policy.spec, policy.layers) < 3e-5


def test_the_compiled_policy_finds_the_points_of_a_reference(policy, library):
    spec = policy.spec
    reference = np.random.default_rng(5).normal(size=(16, spec.num_outputs)).astype(np.float32)
    for k in range(len(reference)):
        rows = np.minimum(k + np.asarray((0, *spec.preview)), len(reference) - 1)
        points = np.zeros((len(rows), spec.num_outputs), np.float32)
        getattr(library, f"{identifier(spec.robot)}_points")(pointer(reference), len(reference), k, pointer(points))
        np.testing.assert_array_equal(points, reference[rows])


def nothing_missing(measured: np.ndarray) -> None:
    pass


def one_missing(measured: np.ndarray) -> None:
    measured[4] = np.nan
    measured[7, 1] = np.inf


def missing_at_first(measured: np.ndarray) -> None:
    measured[:4, 0] = np.nan


@pytest.mark.parametrize("spoil", [nothing_missing, one_missing, missing_at_first])
def test_the_compiled_policy_keeps_its_memory_as_the_robot_does(policy, library, allowed, spoil):
    """Held against the robot's own loop: from its neutral command on, with a gate that changes commands behind it."""
    spec, name = policy.spec, identifier(policy.spec.robot)
    layout, rng, steps = spec.layout, np.random.default_rng(5), 12
    center, scale = np.asarray(spec.scales.measured_center), np.asarray(spec.scales.measured_scale)
    measured = (center + 0.3 * scale * rng.normal(size=(steps + 2, layout.num_measured))).astype(np.float32)
    spoil(measured)
    reference = rng.normal(size=(steps + spec.preview[-1], spec.num_outputs)).astype(np.float32)
    numpy_policy, wanted = NumpyPolicy(spec, policy.layers), []

    def listening(state: np.ndarray, points: np.ndarray) -> np.ndarray:
        wanted.append(numpy_policy(state, points))
        return np.nan_to_num(wanted[-1])  # or the gate ends the trajectory

    limits = GateLimits.of(spec, np.asarray(spec.limits.command_high) / 4, dropouts=10, dropouts_of_20=10)
    executor = Executor(spec, Readings(measured), limits, LockStep(spec.period_s))
    executor.begin()
    ran = executor.follow(listening, reference)  # pyright: ignore[reportArgumentType]
    assert ran.ended == "done"

    memory = np.zeros(layout.size + layout.num_commands + 1, np.float32)
    getattr(library, f"{name}_begin")(pointer(memory), pointer(measured[0]), pointer(executor.gate.neutral))
    for k in range(steps):
        points = np.ascontiguousarray(reference[k + np.asarray((0, *spec.preview))])
        command = np.zeros(layout.num_commands, np.float32)
        getattr(library, f"{name}_step")(pointer(memory), pointer(measured[k + 1]), pointer(points), pointer(command))
        np.testing.assert_allclose(command, wanted[k], atol=3 * allowed)
        assert np.isfinite(command).all() or (spoil is missing_at_first and k < 3)
        getattr(library, f"{name}_applied")(pointer(memory), pointer(ran.commands[k]))


def test_a_missing_measurement_does_not_stay(policy, library, allowed):
    """Without anybody who corrects what is remembered: the last values are held, and the command stays finite."""
    spec, name = policy.spec, identifier(policy.spec.robot)
    layout, numpy_policy = spec.layout, NumpyPolicy(policy.spec, policy.layers)
    states, references = random_inputs(spec, 8, seed=4)
    measured, neutral = states[:, : layout.num_measured].copy(), np.zeros(layout.num_commands, np.float32)
    measured[3] = np.nan
    state, held = initial_state(layout, measured[0], neutral), measured[0]
    memory = np.zeros(layout.size + layout.num_commands + 1, np.float32)
    getattr(library, f"{name}_begin")(pointer(memory), pointer(measured[0]), pointer(neutral))
    step, command = getattr(library, f"{name}_step"), neutral.copy()
    for k in range(len(measured)):
        held = np.where(np.isfinite(measured[k]), measured[k], held)
        state = next_state(layout, state, command, held) if k else state
        step(pointer(memory), pointer(measured[k]), pointer(references[k]), pointer(command))
        assert np.isfinite(command).all()
        np.testing.assert_allclose(command, numpy_policy(state, references[k]), atol=3 * allowed)


def test_a_command_that_is_none_is_not_remembered(policy, library):
    """Points that are not finite give a command that is not; the next step is as if the one before had been held."""
    spec, name = policy.spec, identifier(policy.spec.robot)
    states, references = random_inputs(spec, 3, seed=4)
    size, commands = spec.layout.size, spec.layout.num_commands
    memory = np.zeros(size + commands + 1, np.float32)
    neutral, command = np.full(commands, 0.25, np.float32), np.zeros(commands, np.float32)
    getattr(library, f"{name}_begin")(pointer(memory), pointer(states[0]), pointer(neutral))
    step = getattr(library, f"{name}_step")
    step(pointer(memory), pointer(states[0]), pointer(np.full_like(references[0], np.nan)), pointer(command))
    assert not np.isfinite(command).any()
    step(pointer(memory), pointer(states[1]), pointer(references[1]), pointer(command))
    assert np.isfinite(command).all()
    np.testing.assert_array_equal(memory[spec.layout.command_start : size][:commands], neutral)


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


def compiles(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    files = sorted(folder.glob("*_policy*.c"))
    compiler = shutil.which("gcc") or pytest.skip("there is no gcc on this machine")
    command = [compiler, "-std=c99", *more, *files, "-lm", "-o", folder / "check"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_files_of_two_policies_do_not_compile(toy_spec, tmp_path):
    for key in (1, 2):
        policy = Policy.random(toy_spec, key=jax.random.key(key))
        (tmp_path / str(key)).mkdir()
        for name, text in c_files(policy.spec, policy.layers, card(policy)).items():
            (tmp_path / str(key) / name).write_text(text)
    assert compiles(tmp_path / "1").returncode == 0
    shutil.copy(tmp_path / "2" / "toy_policy.h", tmp_path / "1")
    assert "toy_policy.h is of another policy" in compiles(tmp_path / "1").stderr


def test_a_compiler_that_ignores_missing_numbers_is_refused(toy_spec, tmp_path):
    policy = Policy.random(toy_spec, key=jax.random.key(1))
    for name, text in c_files(policy.spec, policy.layers, card(policy)).items():
        (tmp_path / name).write_text(text)
    assert "-ffast-math" in compiles(tmp_path, "-ffast-math").stderr


def test_the_onnx_policy_is_the_policy(policy, allowed):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(onnx_model(policy.spec, policy.layers, card(policy)))
    states, points = random_inputs(policy.spec, INPUTS, seed=2)
    (found,) = session.run(None, {"state": states, "points": points})
    assert worst(policy, found, exact(policy, states, points)) <= allowed
    assert session.get_modelmeta().custom_metadata_map["sha256"] == card(policy).sha256


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Iterator[Path]:
    """Two small episodes of a small excavator."""
    path = tmp_path_factory.mktemp("runs") / "small"

    def small():
        return excavator_task(trajectories=2, steps=20, hidden=(8,))

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.ROBOTS, "small digger", registry.BuiltIn(small, lambda payload_kg: ExcavatorFlow()))
        config = TrainingConfig.of("small digger", "paper", episodes=2, changes={"model.steps": 5})
        robot = registry.find_robot("small digger").make()
        described = {**config.as_dict(), ROBOT_DESCRIPTION: robot.description().as_dict()}
        with RunFolder.create(path, described, provenance={"started_utc": "2026-05-04T13:30:00+00:00"}) as folder:
            Trainer(robot, config, FolderRecorder(folder)).train()
        yield path


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("c", {"excavator_policy.c", "excavator_policy.h", "excavator_policy_test.c", "excavator_policy.c.md"}),
        ("onnx", {"excavator_policy.onnx", "excavator_policy.onnx.md"}),
        ("safetensors", {"excavator_policy.safetensors", "excavator_policy.safetensors.md"}),
    ],
)
def test_a_policy_leaves_with_its_card(run, tmp_path, kind, files):
    written = write_export(run, kind, tmp_path / "out")
    assert {path.name for path in written} == files == {path.name for path in (tmp_path / "out").iterdir()}
    text = (tmp_path / "out" / f"excavator_policy.{kind}.md").read_text()
    assert "Policy of excavator, learned on small digger, as it ran episode" in text
    assert "episode 1 of small" in text or "episode 2 of small" in text
    assert "cm" in text


def test_an_export_can_be_signed(run, tmp_path):
    for name, arguments in (("policy.key", ["genpkey", "-algorithm", "ed25519"]), ("policy.pub", ["pkey", "-pubout"])):
        given = [] if name == "policy.key" else ["-in", tmp_path / "policy.key"]
        subprocess.run(["openssl", *arguments, *given, "-out", tmp_path / name], check=True, capture_output=True)
    out = tmp_path / "out"
    written = write_export(run, "safetensors", out, sign=tmp_path / "policy.key")
    assert len(written) == 4
    signer = Signer(tmp_path / "policy.pub")
    for name in ("excavator_policy.safetensors", "excavator_policy.safetensors.md"):
        signer.check(out / name, (out / name).read_bytes())
    write_export(run, "safetensors", out, episode=1)
    assert not list(out.glob("*.sig"))  # they were of other files
    with pytest.raises(UserError, match="is not a private key"):
        write_export(run, "c", tmp_path / "no", sign=tmp_path / "policy.pub")
    assert not (tmp_path / "no").exists()


def test_a_card_stays_with_its_policy(run, tmp_path):
    """Another format of another episode in the same folder changes neither."""
    for episode, kind in ((1, "safetensors"), (2, "c")):
        write_export(run, kind, tmp_path, episode=episode)
    data = (tmp_path / "excavator_policy.safetensors").read_bytes()
    text = (tmp_path / "excavator_policy.safetensors.md").read_text()
    assert "episode 1 of small" in text
    assert hashlib.sha256(data).hexdigest() in text
    assert "episode 2 of small" in (tmp_path / "excavator_policy.c.md").read_text()


def card_as_if_on(run: Path, robot: str, **described: Any) -> ModelCard:
    """The card of the run's first policy, had it been learned on another robot."""
    read = Run.open(run)
    config = dataclasses.replace(read.config, robot=robot)
    description = dataclasses.replace(read.description, **described)
    return controller_and_card(dataclasses.replace(read, config=config, description=description), 1)[1]


@pytest.mark.parametrize(
    ("robot", "kind", "text"),
    [
        ("excavator", "simulation", "Policy of excavator, as it ran"),
        ("excavator-pressure", "simulation", "Policy of excavator, learned on excavator-pressure, as it ran"),
        ("/gone/imitation", "learned simulator", "Policy of excavator, learned on the learned simulator imitation, as"),
        ("/gone/my_robot.py:arm", "environment", "Policy of excavator, learned on my_robot-arm, as it ran"),
    ],
)
def test_a_card_says_which_robot_the_policy_was_learned_on(run, robot, kind, text):
    """Robots with one task, none of which is at hand."""
    assert card_as_if_on(run, robot, kind=kind).lines()[0].startswith(text)


def test_a_card_has_the_angles_of_the_robots_description(run):
    assert card_as_if_on(run, "/gone/turning.py:task", angles=(1,)).angles == ("dipper.position",)
    assert card_as_if_on(run, "excavator").angles == ()


def test_a_card_names_angles_that_are_counted_on(toy_spec):
    policy = Policy.random(toy_spec, key=jax.random.key(1))
    lines = ModelCard.of(policy.spec, policy.layers, run="a run", episode=1, tracking_error=None, angles=(1,)).lines()
    assert sum("±π" in line and line.endswith(": p1.") for line in lines) == 1
    assert not any("±π" in line for line in card(policy).lines())


def test_an_export_is_replaced_as_a_whole_or_not_at_all(run, tmp_path, monkeypatch):
    """The disk is full when the second file is written."""
    write_export(run, "c", tmp_path, episode=1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write, written = atomic.write_all, []

    def full_after_one(handle: int, data: bytes) -> None:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(handle)
        write(handle, data)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "write_all", full_after_one)
        with pytest.raises(UserError, match="the disk is full"):
            write_export(run, "c", tmp_path, episode=2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    write_export(run, "c", tmp_path, episode=2)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after.keys() == before.keys()
    assert all(after[name] != before[name] for name in before)


def test_the_exported_file_is_what_the_robot_loads(run, tmp_path):
    (file, _) = write_export(run, "safetensors", tmp_path, episode=2)
    arrays, _ = RunFolder.open(run).load_episode(2)
    loaded = load_policy(file)
    np.testing.assert_array_equal(loaded.layers[0][0], arrays["policy.0.weight"])


def test_the_log_reads_back_as_it_was(run, tmp_path):
    file, _ = write_export(run, "mcap", tmp_path)
    folder = RunFolder.open(run)
    log = read_mcap(file, excavator_task(trajectories=2, steps=20, hidden=(8,)).spec)
    assert len(log.series) == 2  # an episode each: the two trajectories of one follow each other
    assert not log.refused or set(log.refused) == {"nothing was measured one period later"}
    for episode, series in zip((1, 2), log.series, strict=True):
        arrays, _ = folder.load_episode(episode)
        np.testing.assert_allclose(series.commands, arrays["commands"].reshape(-1, 4), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(series.measured[-1], arrays["measured"][-1, -1], rtol=1e-6, atol=1e-7)


def test_motions_that_only_meet_at_the_same_place_stay_apart(run, tmp_path, monkeypatch):
    """A trajectory that begins where the last one ended, but after other commands, is another motion."""
    record = Run.record

    def after_a_reset(self: Run, episode: int) -> EpisodeRecord:
        found = record(self, episode)
        starts = found.starts.copy()
        starts[1, self.description.spec.layout.command_start :] = 0.0
        return dataclasses.replace(found, starts=starts)

    monkeypatch.setattr(Run, "record", after_a_reset)
    file, _ = write_export(run, "mcap", tmp_path)
    assert len(read_mcap(file, excavator_task(trajectories=2, steps=20, hidden=(8,)).spec).series) == 4


def test_bad_input_is_named(run, tmp_path):
    with pytest.raises(UserError, match="There is no format 'onxx'"):
        write_export(run, "onxx", tmp_path)
    with pytest.raises(UserError, match="holds episodes 1 to 2"):
        write_export(run, "c", tmp_path, episode=9)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="file"):
        write_export(run, "c", tmp_path / "file" / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize(
    "name",
    [
        '*/\nint main(void){return system("id");}\n/*',
        "*\n/ int injected;",
        "* /\r*/ int injected;",
        "*\u2028/ int injected;",
        "**//int injected;",
        "*/*/ int injected;",
        "ends in \\",
        "*\\\n/ int injected;",
        "*??/\n/ int injected;",
        "\x00*/\x0b int injected;",
    ],
)
def test_names_inject_nothing_into_c(name, toy_spec):
    """Names of robots, quantities and runs come from whoever made the folder."""
    policy, spec = Policy.random(toy_spec, key=jax.random.key(3)), toy_spec
    measured, commands = (name, *spec.layout.measured[1:]), (name, *spec.layout.commands[1:])
    layout = dataclasses.replace(spec.layout, measured=measured, commands=commands)
    hostile = dataclasses.replace(spec, robot=f"robot {name}", layout=layout)
    card = ModelCard.of(hostile, policy.layers, run=name, episode=3, tracking_error=0.012)
    assert not any(set(line) & set("\n\r\x0b\x00\u2028") for line in card.lines())
    for text in c_files(hostile, policy.layers, card).values():
        spliced = text.replace("??/", "\\").replace("\\\n", "")
        code = re.sub(r"/\*.*?\*/", "", spliced, flags=re.DOTALL)
        assert "int injected" not in code
        assert "system(" not in code


def test_the_log_is_ros_2_messages_with_a_layout_for_foxglove(run, tmp_path):
    from mcap.reader import make_reader
    from mcap_ros2.decoder import DecoderFactory

    file, layout = write_export(run, "mcap", tmp_path)
    spec = excavator_task(trajectories=2, steps=20, hidden=(8,)).spec
    with file.open("rb") as stream:
        reader = make_reader(stream, decoder_factories=[DecoderFactory()])
        found = [
            (channel.topic, getattr(schema, "name", ""), message)
            for schema, channel, _, message in reader.iter_decoded_messages()
        ]
    arrays, _ = RunFolder.open(run).load_episode(1)
    first = {topic: message for topic, _, message in reversed(found)}
    kinds = {topic: name for topic, name, _ in found}
    assert kinds.pop("/joint_states") == "sensor_msgs/msg/JointState"
    assert set(kinds.values()) == {"std_msgs/msg/Float64MultiArray"}
    assert first["/joint_states"].name == ["boom", "dipper", "telescope", "pitch"]
    np.testing.assert_allclose(first["/joint_states"].position, arrays["measured"][0, 0, list(spec.layout.position)])
    np.testing.assert_allclose(first["/firsthand/command"].data, arrays["commands"][0, 0])
    assert first["/firsthand/command"].layout.dim[0].label == "boom,dipper,telescope,pitch"
    # Every path in the layout is an entry of a message.
    for panel in json.loads(layout.read_text())["configById"].values():
        for path in panel["paths"]:
            topic, entry = path["value"].removesuffix("]").split(".data[")
            assert int(entry) < len(first[topic].data)


def test_a_lerobot_dataset_reads_back_as_it_was(run, tmp_path):
    import pyarrow.parquet

    files = write_export(run, "lerobot", tmp_path)
    root = tmp_path / "excavator_lerobot"
    assert root / "meta" / "info.json" in files
    spec = excavator_task(trajectories=2, steps=20, hidden=(8,)).spec
    log = read_log(root, spec)
    folder = RunFolder.open(run)
    assert len(log.series) == 2
    for episode, series in zip((1, 2), log.series, strict=True):
        arrays, _ = folder.load_episode(episode)
        np.testing.assert_array_equal(series.commands, arrays["commands"].reshape(-1, 4)[:-1])
        np.testing.assert_array_equal(series.measured[0], arrays["measured"][0, 0])
    info = json.loads((root / "meta" / "info.json").read_text())
    assert (info["codebase_version"], info["total_episodes"], info["total_frames"]) == ("v3.0", 2, 80)
    episodes = pyarrow.parquet.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [(row["dataset_from_index"], row["dataset_to_index"]) for row in episodes] == [(0, 40), (40, 80)]
    data = pyarrow.parquet.read_table(root / "data/chunk-000/file-000.parquet")
    assert data["index"].to_pylist() == list(range(80))
    np.testing.assert_allclose(data["timestamp"].to_numpy()[:40], spec.period_s * np.arange(40), rtol=1e-6)
