"""A policy that tracks the tip of an arm in space, exported as C and ONNX, is the policy."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from firsthand.export import ModelCard
from firsthand.export.accuracy import exact_commands, random_inputs, tolerance
from firsthand.export.c_source import c_files
from firsthand.export.onnx_graph import onnx_model
from firsthand_onboard import ArmModel, ControlSpec, Limits, PolicyShape, ReferenceSpec, Scales, StateLayout
from firsthand_onboard.policy import expected_shapes

RAIL = Path(__file__).parents[1] / "onboard" / "arms" / "rail_arm.xml"


@pytest.fixture(scope="module", params=[0.0, 0.3], ids=["position", "pose"])
def policy(request):
    """The arm on a rail (a prismatic joint, six revolute ones), and random layers."""
    arm = ArmModel.from_mjcf(RAIL, tip="tcp", lever=request.param)
    low, high = np.asarray(arm.position_low), np.asarray(arm.position_high)
    spec = ControlSpec(
        robot="rail arm",
        period_s=0.05,
        layout=StateLayout(("load", *arm.joints), tuple(range(1, 8)), (), ("u", "v"), 2),
        kinematics=arm.chain,
        preview=(2, 4),
        scales=Scales((0.0, *((low + high) / 2)), (1.0, *((high - low) / 2)), (0.1,) * 8, 0.3, 0.5),
        limits=Limits((-1.0,) * 2, (1.0,) * 2, arm.position_low, arm.position_high),
        reference=ReferenceSpec("position", 10, (-1.0,) * 7, (1.0,) * 7),
        policy=PolicyShape((8,)),
    )
    rng = np.random.default_rng(4)
    layers = [tuple(rng.normal(0, 0.5, shape).astype(np.float32) for shape in part) for part in expected_shapes(spec)]
    states, points = random_inputs(spec, 500, seed=1)
    return spec, layers, states, points


def test_the_compiled_and_the_onnx_policy_are_the_policy(policy, tmp_path):
    spec, layers, states, points = policy
    allowed, expected = tolerance(spec, layers), exact_commands(spec, layers, states, points)
    assert allowed < 1e-4
    card = ModelCard.of(spec, layers, run="a run", episode=3, tracking_error=0.012)
    for name, text in c_files(spec, layers, card).items():
        (tmp_path / name).write_text(text)
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None
    flags = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", "-shared", "-fPIC"]
    library = tmp_path / "policy.so"
    subprocess.run([compiler, *flags, str(tmp_path / "rail_arm_policy.c"), "-o", str(library), "-lm"], check=True)
    evaluate, pointer = ctypes.CDLL(str(library)).rail_arm_evaluate, np.ctypeslib.ndpointer(np.float32)
    evaluate.argtypes, evaluate.restype = [pointer] * 3, None
    compiled = np.zeros(expected.shape, np.float32)
    for row, state, preview in zip(compiled, states, points, strict=True):
        evaluate(state, np.ascontiguousarray(preview), row)
    assert np.abs(compiled - expected).max() <= allowed

    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(onnx_model(spec, layers, card), providers=["CPUExecutionProvider"])
    (found,) = session.run(["command"], {"state": states, "points": points})
    assert np.abs(found - expected).max() <= allowed
