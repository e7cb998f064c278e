"""The procedure of `residual` on a robot, episode by episode; all of it counts as robot time.

1. The PI controller is identified by `firsthand inspect`'s pushes, as for `pid`; its gains are the rule's.
2. The model learns from these pushes. So the first episode is the base's alone, as ours is with `--base pi`: no random
   commands are added, because the pushes have shown what each command does.
3. After every episode the model of our fast preset learns, then the policy by backpropagation through time.
"""

import time
from collections.abc import Sequence

import jax
import numpy as np

from firsthand.agent.settings import Settings
from firsthand.agent.state import LearnerState
from firsthand.controllers.by_hand import StepController
from firsthand.controllers.pi import identify_axes, pi_base
from firsthand.models import Controller
from firsthand.robots.base import AbstractRobot, EpisodeRecord
from firsthand.tasks import Task
from firsthand.training.bases import Base, as_jax
from firsthand.training.learning import draw_imagined_starts, read_record, visited_states
from firsthand.training.origin import BaseOrigin
from firsthand.training.prior import Prior
from firsthand_onboard.base_control import NO_LIMIT, BaseControl

from ..neural_mpc.learner import ModelLearner, join_records
from ..ours import RobotController
from .backpropagation import improve_policy, optimizer

AUTHORITY = 0.5
"""The largest size of the learned part, of half the command range."""
TRAJECTORIES, BATCH, STEPS = 96, 16, 60
"""Imagined trajectories per episode, those of an Adam step, and Adam steps."""


class ResidualLearner(ModelLearner):
    """A base, a model, and a policy on top of the base."""

    def __init__(
        self, task: Task, settings: Settings, *, seed: int, capacity: int, steps: int = STEPS, batch: int = BATCH
    ) -> None:
        super().__init__(task, settings, seed=seed, capacity=capacity)
        self.steps, self.batch, self.capacity = steps, batch, capacity
        self._rng = np.random.default_rng(seed)
        self._key = jax.random.key(seed)

    def excite(self, robot: AbstractRobot) -> None:
        """Identify the base, and learn from the motion. This moves the robot with up to 90 % of its command range."""
        task, spec, settings = self.task, self.task.spec, self.settings
        found = identify_axes(robot, robot.task, seed=self.seed)
        base = Base(BaseOrigin("pi", robot_time_s=found.robot_time_s), pi_base(spec, found.axes), found.recorded)
        began = time.process_time()
        prior = Prior().on_base(base, spec)
        rows = settings.model.log_episodes * task.trajectories * task.steps
        self.buffer = prior.buffer(task, self.capacity, rows)
        control = as_jax(BaseControl(base.controller, AUTHORITY, NO_LIMIT))
        begun = LearnerState.random(spec, settings, seed=self.seed, control=control)
        self.state = prior.warm_start(begun, task, settings, seed=self.seed)
        self.policy = self.state.policy
        self.robot_time_s = found.robot_time_s
        self.processor_time_s = found.processor_time_s + time.process_time() - began
        self._moments = optimizer().init(self.policy.layers)  # pyright: ignore[reportArgumentType] (a pytree)

    def make_best(self) -> StepController:
        """The newest policy."""
        return RobotController(Controller(self.policy, self.state.observer))

    def make(self) -> StepController:
        """The newest policy; in the first episode the base."""
        return self.make_best()

    def learn(self, records: Sequence[EpisodeRecord], error: float) -> None:
        """An episode with `make()` is over."""
        self.episodes += 1
        began, whole = time.process_time(), join_records(records)
        rollout, sound = read_record(self.task.spec, whole)
        visited = visited_states(self.buffer, rollout, sound, TRAJECTORIES, self._rng)
        self.append(whole)
        imagined = draw_imagined_starts(self.task, whole, TRAJECTORIES, self._rng, visited)
        if imagined is None:  # nothing of the episode can be believed
            return
        self._key, key = jax.random.split(self._key)
        self.policy, self._moments, _ = improve_policy(
            self.policy,
            self._moments,
            self.state.dynamics,
            self.task.cost,
            imagined,
            steps=self.steps,
            batch=self.batch,
            key=key,
        )
        jax.block_until_ready(self.policy.layers[0][0])
        self.updates += self.steps
        self.processor_time_s = time.process_time() - began

    @property
    def parameters(self) -> int:
        """Of model and policy."""
        return super().parameters + sum(w.size + b.size for w, b in self.policy.layers)

    @property
    def setting(self) -> str:
        """A summary of the settings, for people."""
        return (
            f"PI controller with the rule's gains from {self.robot_time_s / 60:.1f} min of inspection, from which the "
            f"model learns, too; learned part of at most {AUTHORITY:g} of half the range; the fast preset's model, "
            f"then {self.steps} Adam steps of backpropagation through time over whole trajectories, {self.batch} at a "
            "time, per episode"
        )
