"""A base leaves with its policy: C by gcc over a whole motion, and what cannot be written is refused."""

import ctypes
import dataclasses
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.controllers.pi import Axis, pi_base
from firsthand.export import ModelCard
from firsthand.export.c_source import c_files, identifier
from firsthand.models import Controller, Policy
from firsthand.robots.real_excavator import real_excavator_task
from firsthand.tasks import Task, excavator_task
from firsthand_onboard import PolicyShape
from firsthand_onboard.base_control import BaseControl, PolicyBase, ReferenceBase
from firsthand_onboard.features import build_reference, initial_state, next_state, preview_points

STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic")


def axis(sign: float, lag_s: float) -> Axis:
    size = np.asarray([0.05, 0.2, 1.0])
    return Axis(sign, (size, np.asarray([0.0, 0.1, 0.9])), (size, np.asarray([0.0, 0.2, 1.2])), 0.1, lag_s)


def base_of(task: Task, kind: str) -> Any:
    if kind == "pi":
        return pi_base(task.spec, tuple(axis(s, 0.1 + 0.05 * i) for i, s in enumerate((-1.0, 1.0, 1.0, 1.0))))
    if kind == "policy":
        return PolicyBase(Policy.random(task.spec, key=jax.random.key(1)).layers)
    return ReferenceBase()


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        (excavator_task(), "pi"),
        (real_excavator_task(), "pi"),
        (excavator_task(), "policy"),
        (real_excavator_task(), "reference"),
    ],
    ids=["pi on a chain", "pi on joints", "policy", "reference"],
)
def test_c_follows_a_motion_as_numpy_does(task: Task, kind: str, tmp_path: Path, monkeypatch):
    compiler = shutil.which("gcc") or pytest.skip("there is no gcc on this machine")
    monkeypatch.setattr("firsthand.export.accuracy.SAMPLES", 20)
    spec = dataclasses.replace(task.spec, policy=PolicyShape((8, 8)))
    task = dataclasses.replace(task, spec=spec)
    control = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), BaseControl(base_of(task, kind), 0.4, 0.1))
    policy = Policy.random(spec, key=jax.random.key(3), control=control)
    *hidden, (weight, bias) = policy.layers
    policy = dataclasses.replace(policy, layers=(*hidden, (weight + 0.05, bias)))
    card = ModelCard.of(spec, policy.layers, run="run", episode=1, tracking_error=None, control=control)
    assert card.base == kind
    for name, text in c_files(spec, policy.layers, card, None, control).items():
        (tmp_path / name).write_text(text)
    name, sources = identifier(spec.robot), list(tmp_path.glob("*.c"))
    subprocess.run([compiler, *STRICT, *sources, "-lm", "-o", tmp_path / "check"], check=True)
    subprocess.run([tmp_path / "check"], check=True)  # its own test vectors
    source = tmp_path / f"{name}_policy.c"
    subprocess.run([compiler, *STRICT, "-shared", "-fPIC", source, "-lm", "-o", tmp_path / "policy.so"], check=True)
    library = ctypes.CDLL(str(tmp_path / "policy.so"))

    def array(values: Any) -> Any:
        return (ctypes.c_float * np.size(values))(*np.asarray(values, np.float32).reshape(-1).tolist())

    layout, size = spec.layout, len(spec.layout.position)
    measured = np.zeros(layout.num_measured, np.float32)
    measured[list(layout.position)] = task.home
    neutral, memory, runs = (
        np.asarray(spec.neutral, np.float32),
        (ctypes.c_char * 8192)(),
        Controller(policy).for_robot().policy,
    )
    getattr(library, f"{name}_begin")(memory, array(measured), array(neutral))
    state, largest = initial_state(layout, measured, neutral), 0.0
    for trajectory in range(2):
        goal = np.asarray(task.home, np.float32) + np.float32(0.1 if trajectory else -0.1)
        if spec.reference.space == "position":
            reference = build_reference(spec, measured, goal)
        else:
            reference = build_reference(spec, measured, goal[: spec.num_outputs])
        runs.begin(state, motion=trajectory == 0)
        if trajectory:
            getattr(library, f"{name}_begin_trajectory")(memory)
        for step in range(40):
            points, found = preview_points(spec, reference, step), array(neutral)
            getattr(library, f"{name}_step")(memory, array(measured), array(points), found)
            command = runs(state, points)
            half = (np.asarray(spec.limits.command_high) - np.asarray(spec.limits.command_low)) / 2
            largest = max(largest, float(np.abs((np.asarray(found) - command) / half).max()))
            measured = measured + np.float32(0.004) * np.sign(np.resize(command, layout.num_measured))
            measured[size:] = 0.0
            getattr(library, f"{name}_applied")(memory, array(command))
            state = next_state(layout, state, command, measured)
    assert largest < 2e-3
    assert runs.base is not None
    assert runs.base.memory[-1] < 1.0  # the learned part was taken back on the way
