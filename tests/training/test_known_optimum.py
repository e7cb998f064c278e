"""The default preset against the best of all controllers, on a plant whose optimum is known, seen late."""

import dataclasses

import numpy as np
import pytest

from firsthand.plants.linear_quadratic import augmented_system, solve_tracking
from firsthand.plants.probes import DelayedDoubleIntegrator
from firsthand.plants.sensors import Sensors, sense
from firsthand.robots.simulated import SimulatedRobot
from firsthand.tasks import EvaluationReference
from firsthand.tasks.cost import tracking_cost
from firsthand.training import Trainer, TrainingConfig
from firsthand.training.presets import preset

LENGTH, CHANGE, LIMIT, STEPS = 0.3, 0.3, 6.0, 40
"""Length scale, weight of a command's change per unit, largest command, steps of a trajectory."""


@pytest.fixture(scope="module")
def task(make_probe_task):
    """Set-points, so that the best controller costs something and is linear."""
    change_weight = CHANGE * LIMIT**2
    plain = make_probe_task(
        measured=2,
        command_memory=3,
        steps=STEPS,
        preview=(1, 2, 3, 4, 6),
        command_limit=LIMIT,
        hidden=(32, 32),
        trajectories=10,
        length_scale=LENGTH,
        change_weight=change_weight,
    )
    layout = dataclasses.replace(plain.spec.layout, measurement_memory=2)
    reference = dataclasses.replace(plain.spec.reference, profile="hold")
    spec = dataclasses.replace(plain.spec, layout=layout, reference=reference)
    cost = tracking_cost(spec, length_scale=LENGTH, change_weight=change_weight, limit_weight=0.0)
    return dataclasses.replace(plain, spec=spec, cost=cost)


@pytest.mark.slow
def test_behind_a_late_sensor_the_cost_comes_within_a_tenth_of_the_optimum(task):
    """Velocities pass a low-pass; commands act two periods late. The optimum is that of the exact machine."""
    plant = DelayedDoubleIntegrator(gain=2.0, delay=2)
    robot = SimulatedRobot(sense(plant, Sensors(lag=(0.0, 0.5))), task, seed=0)
    settings = preset("fast").with_changes({"model.hidden": (32, 32)})
    trainer = Trainer(robot, TrainingConfig("probe", "fast", settings, episodes=8), keep_going=True)
    trainer.train()

    rng = np.random.default_rng(5)
    starts, goals = rng.uniform(-1.0, 1.0, 32), rng.uniform(-1.0, 1.0, 32)
    system = augmented_system(plant, task.spec.layout.command_memory)
    best, reached = [], []
    references = tuple(
        EvaluationReference(str(i), np.full((STEPS, 1), goal), np.asarray([start]))
        for i, (start, goal) in enumerate(zip(starts, goals, strict=True))
    )
    for reference, record in zip(references, robot.follow(trainer.state.controller, references), strict=True):
        start = np.zeros(system.A.shape[0])
        start[0] = reference.start[0]
        optimum = solve_tracking(system, reference.points, length_scale=LENGTH, change_weight=CHANGE)
        best.append(optimum.cost(start))
        error = np.asarray(record.truth)[0, :STEPS, 0] - reference.points[:, 0]
        change = np.diff(np.asarray(record.commands)[0, :, 0], prepend=0.0)
        reached.append(np.mean((error / LENGTH) ** 2 + CHANGE * change**2))
    assert 1.0 - 1e-3 <= np.mean(reached) / np.mean(best) <= 1.1
