"""The robots in docs/bring_your_robot.md and examples/ move. The one in the README is trained in tests/cli."""

import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from documented import ROOT, documented_files
from firsthand.models import Policy
from firsthand.robots.registry import find_robot
from firsthand_onboard.policy import expected_shapes

PAGE = documented_files("docs/bring_your_robot.md")


@pytest.mark.parametrize(
    ("file", "name"),
    [("trolley.py", "task"), ("cart.py", "cart"), ("examples/reacher.py", "task"), ("examples/urdf_arm.py", "pose")],
)
def test_a_documented_robot_moves(tmp_path: Path, file: str, name: str) -> None:
    (tmp_path / Path(file).name).write_text(PAGE[file] if file in PAGE else (ROOT / file).read_text())
    shutil.copytree(ROOT / "examples" / "arms", tmp_path / "arms")
    robot_name = f"{tmp_path / Path(file).name}:{name}"
    found = find_robot(robot_name, approve=True)
    task, robot = found.task, found.make()
    rng = np.random.default_rng(0)
    layers = [(rng.normal(0.0, 0.3 * w[1] ** -0.5, w), np.zeros(b)) for w, b in expected_shapes(task.spec)]
    policy = Policy(tuple((jnp.asarray(weight), jnp.asarray(bias)) for weight, bias in layers), task.spec)
    record = robot.run_episode(policy, task.sample_goals(rng, robot.measured(), 2))
    assert record.valid[0].all()
    travelled = np.ptp(record.references, axis=1)
    assert (travelled.max(axis=1) > 0.01).all()
    records = robot.follow(policy, task.evaluation(task.evaluation_speed))
    assert all(np.isfinite(r.measured).all() for r in records)
    for kept, reference in zip(records, task.evaluation(task.evaluation_speed), strict=True):
        position = kept.measured[0, 0, list(task.spec.layout.position)]
        np.testing.assert_allclose(position, reference.start, atol=1e-5)
