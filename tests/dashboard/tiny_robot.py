"""A robot for the tests of the live page: an arm of two links whose joints go as fast as they are told.

Small networks, short episodes; an episode is made to last a moment, so that a person, or a test, can press a button
while it runs.
"""

import dataclasses
import time

import jax.numpy as jnp

from firsthand.plants.base import AbstractPlant
from firsthand.robots import SimulatedRobot
from firsthand.tasks.base import Task
from firsthand.tasks.box import BoxGoals, BoxReferences, GoalBox
from firsthand.tasks.cost import tracking_cost
from firsthand_onboard import (
    ControlSpec,
    Limits,
    PlanarChain,
    PlanarJoint,
    PolicyShape,
    ReferenceSpec,
    Scales,
    StateLayout,
)

EPISODE_S = 0.15


class Drives(AbstractPlant):
    """Two joints."""

    @property
    def period_s(self):
        return 0.1

    @property
    def num_commands(self):
        return 2

    @property
    def num_measured(self):
        return 2

    def reset(self, position):
        return jnp.asarray(position)

    def step(self, state, command, *, key):
        return state + 0.1 * command

    def measure(self, state, *, key):
        return state


class SlowRobot(SimulatedRobot):
    def run_episode(self, policy, goals, excitation=None):
        time.sleep(EPISODE_S)
        return super().run_episode(policy, goals, excitation)


def tiny_task() -> Task:
    spec = ControlSpec(
        robot="tiny <b>arm</b>",
        period_s=0.1,
        layout=StateLayout(("a.position", "b.position"), (0, 1), (), ("a", "b"), 1),
        kinematics=PlanarChain((0.0, 0.0), (PlanarJoint("revolute", 1.0), PlanarJoint("revolute", 1.0))),
        preview=(1, 2),
        scales=Scales((0.0, 0.0), (1.0, 1.0), (0.1, 0.1), 0.3, 0.3),
        limits=Limits((-1.0, -1.0), (1.0, 1.0), (-2.0, -2.0), (2.0, 2.0)),
        reference=ReferenceSpec("position", 12, (-1.0, -1.0), (1.0, 1.0)),
        policy=PolicyShape((8,)),
    )
    box = GoalBox((-1.0, -1.0), (1.0, 1.0))
    home = (0.2, 0.4)
    return Task(
        spec=spec,
        cost=tracking_cost(spec, length_scale=1.0),
        sample_goals=BoxGoals(spec, box),
        evaluation=BoxReferences(spec, box, home),
        evaluation_speed=0.3,
        home=home,
        trajectories=2,
    )


@dataclasses.dataclass(frozen=True)
class Tiny:
    def make_task(self) -> Task:
        return tiny_task()

    def make_robot(self, task: Task, *, payload_kg: float, seed: int) -> SlowRobot:
        return SlowRobot(Drives(), task, seed=seed)


arm = Tiny()
