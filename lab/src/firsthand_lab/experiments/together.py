"""Several seeds of one set-up, trained side by side: every compiled call serves all of them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from firsthand.agent import Agent, AgentState, Buffer, Experience, LearnerState, Rollout, Settings, Update
from firsthand.agent.buffer import append_rollout, has_room
from firsthand.agent.estimation import in_use
from firsthand.agent.trees import stack_trees, take_member
from firsthand.errors import UserError
from firsthand.evaluation import tracking_metrics
from firsthand.evaluation.metrics import TrackingMetrics
from firsthand.models import Controller, Policy
from firsthand.plants.base import AbstractPlant
from firsthand.robots.base import EpisodeRecord
from firsthand.robots.simulated import SimulatedRobot, run_trajectories
from firsthand.tasks import Task
from firsthand.training.learning import fit_settings, plan_episode, prepare_experience, read_record


class Together:
    """Algorithm 1 for several seeds at once on a simulated robot.

    Seed by seed it computes what `training.Trainer` computes, with the same random numbers; only the order of sums in
    the vectorised calls differs. Where that cannot be, because one of several seeds has no sound start to imagine
    trajectories from, it stops. `plant` and `settings` may be changed between episodes: a payload, a frozen model.
    `settings` may have arrays with a leading axis (see `agent.trees.stack_settings`): then every seed has its own.
    """

    def __init__(
        self, plant: AbstractPlant, task: Task, settings: Settings, seeds: Sequence[int], *, episodes: int
    ) -> None:
        self.plant, self.task, self.seeds = plant, task, tuple(seeds)
        self.settings = settings = fit_settings(settings, task)
        self.episode = 0
        """Episodes done."""
        capacity = episodes * task.trajectories * task.steps
        agents = [Agent(task.spec, task.cost, take_member(settings, i)) for i in range(len(self.seeds))]
        begun = stack_trees([agent.init(seed, capacity) for agent, seed in zip(agents, self.seeds, strict=True)])
        self.state, self.buffer = begun.learner, begun.buffer
        robots = [SimulatedRobot(plant, task, seed=seed).snapshot() for seed in self.seeds]
        self._now, self._key = stack_trees([now for now, _ in robots]), stack_trees([key for _, key in robots])
        self.records: list[EpisodeRecord] = []
        """Each robot's trajectories in the last episode."""

    def run_episode(self, *, learn_model: bool = True) -> dict[str, np.ndarray]:
        """One episode of every seed; its metrics, one entry per seed.

        With `learn_model` false the model stays as it is (the data is kept all the same).
        """
        task, settings = self.task, self.settings
        measured = np.asarray(self._now[1])[:, : task.spec.layout.num_measured]
        rngs = [np.random.Generator(np.random.Philox(key=[seed, self.episode])) for seed in self.seeds]
        plans = [
            plan_episode(task, take_member(settings, i), self.episode, [(task.trajectories, y)], rng)
            for i, (rng, y) in enumerate(zip(rngs, measured, strict=True))
        ]
        nothing = np.zeros((task.trajectories, task.steps, task.spec.layout.num_commands))
        goals = jnp.asarray(np.stack([goals for goals, _ in plans]), jnp.float32)
        added = [nothing if excitation is None else excitation for _, excitation in plans]
        excitations = jnp.asarray(np.stack(added), jnp.float32)
        self._now, self._key, played = _episodes(
            self.plant, self._controllers(), task.spec, self._now, goals, excitations, self._key
        )
        played = [None if part is None else np.asarray(part, np.float32) for part in played]
        self.records = [
            EpisodeRecord.complete(*(None if part is None else part[i] for part in played))
            for i in range(len(self.seeds))
        ]
        members = [take_member((self.state, settings), i) for i in range(len(self.seeds))]
        noise = [float(state.noise_share(own)) for state, own in members]
        experiences = [
            prepare_experience(task, settings, take_member(self.buffer, i), record, rng, noise_share=noise[i])
            for i, (record, rng) in enumerate(zip(self.records, rngs, strict=True))
        ]
        self._check_experiences(experiences)
        experience = stack_trees(experiences)
        self._check_room()
        agent = Agent(task.spec, task.cost, self.settings)
        state, update = _observe((agent, self.state, experience, learn_model), self.buffer)
        self.state, self.buffer = state.learner, state.buffer
        self.episode += 1
        # Every true step counts, as in `training.learning.episode_metrics`: what a learner takes for a spike is no
        # reason to leave the truth out, and differs between learners that are compared.
        valid = np.asarray(update.rollout.valid)
        judged = [
            dataclasses.replace(record, valid=valid[i]) if record.truth is None else record
            for i, record in enumerate(self.records)
        ]
        tracking = [tracking_metrics(task.spec, (record,)) for record in judged]
        return {
            "tracking_error": np.array([t.mean_error for t in tracking]),
            "controller_loss": np.array([t.rms_error**2 for t in tracking]),
            "cost": np.asarray(update.policy.cost),
            "model_loss": np.asarray(update.model.loss),
            "prediction_error": np.asarray(update.prediction_error),
            "gradient_norm": np.asarray(update.policy.step.gradient_norm),
            "step_norm": np.asarray(update.policy.step.step_norm),
            "steps_taken": np.asarray(update.policy.steps_taken),
            "rolled_back": np.asarray(update.policy.rolled_back),
            "refused_updates": np.asarray(self.state.refused),
        }

    def _check_experiences(self, experiences: list[Experience]) -> None:
        """One program serves all seeds: all of them have imagined trajectories, or none has."""
        missing = [seed for seed, one in zip(self.seeds, experiences, strict=True) if one.imagined is None]
        if 0 < len(missing) < len(self.seeds):
            raise UserError(
                f"in episode {self.episode + 1} of seed {missing[0]} no trajectory had a sound start to imagine others "
                "from, and the other seeds' had: they cannot go on together."
            )

    def _check_room(self) -> None:
        """The buffers are not made larger on the way: a program that serves all seeds would be compiled anew."""
        if not has_room(self.buffer, self.task.trajectories * self.task.steps):
            raise ValueError("there are more episodes than `episodes`, for which the buffers were made")

    def _controllers(self) -> Controller:
        """Policies with the observers in use; where the register is, with the observer that equals it."""
        estimation = self.state.estimation
        return Controller(self.state.policy, None if estimation is None else eqx.filter_vmap(in_use)(estimation))

    def policy(self, index: int) -> Policy:
        """The newest policy of one seed."""
        return take_member(self.state.policy, index)

    def follow(self, speed: float | None = None) -> list[tuple[EpisodeRecord, ...]]:
        """For every seed, what its newest policy does on the task's evaluation references."""
        references = self.task.evaluation(self.task.evaluation_speed if speed is None else speed)
        robot = SimulatedRobot(self.plant, self.task)
        return [robot.follow(take_member(self.state, i).controller, references) for i in range(len(self.seeds))]

    def evaluate(self, speed: float | None = None) -> list[TrackingMetrics]:
        """For every seed, the metrics of its newest policy over all evaluation references together."""
        return [tracking_metrics(self.task.spec, records) for records in self.follow(speed)]

    def remember(self, records: Sequence[EpisodeRecord]) -> None:
        """Put an episode of every seed into the buffers again, as after `restore` without them."""
        self._check_room()
        self.buffer = _append(stack_trees([read_record(self.task.spec, record) for record in records]), self.buffer)

    def snapshot(self) -> dict[str, Any]:
        """Everything that the next episode depends on, as a pytree (for `runs.pytrees.to_arrays`)."""
        return {
            "state": self.state,
            "buffer": self.buffer,
            "robot": (self._now, self._key),
            "episode": jnp.asarray(self.episode, jnp.int32),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go back to a snapshot."""
        self.state, self.buffer = snapshot["state"], snapshot["buffer"]
        self._now, self._key = snapshot["robot"]
        self.episode = int(snapshot["episode"])


@eqx.filter_jit
def _episodes(plant, policies, spec, now, goals, excitations, keys):
    def one(policy, start, goals, excitation, key):
        following, episode_key = jax.random.split(key)
        end, _, played = run_trajectories(plant, policy, spec, start, goals, excitation, episode_key)
        return end, following, played

    return eqx.filter_vmap(one)(policies, now, goals, excitations, keys)


@eqx.filter_jit(donate="all-except-first")
def _observe(fixed: tuple[Agent, LearnerState, Experience, bool], buffer: Buffer) -> tuple[AgentState, Update]:
    """`Agent.observe` for every member. Only the buffer is consumed."""
    agent, learner, experience, learn_model = fixed

    def one(settings: Settings, learner: LearnerState, buffer: Buffer, experience: Experience):
        member = dataclasses.replace(agent, settings=settings)
        return member.observe(AgentState(learner, buffer), experience, learn_model=learn_model)

    members = (agent.settings, learner, buffer, experience)
    if not agent.settings.refines:
        return eqx.filter_vmap(one)(*members)
    # One after the other: side by side, each would compute refinement and what it stands in for.
    arrays, others = eqx.partition(members, eqx.is_array)
    return jax.lax.map(lambda part: one(*eqx.combine(part, others)), arrays)


@eqx.filter_jit(donate="all-except-first")
def _append(experiences: tuple[Rollout, Array], buffers: Buffer) -> Buffer:
    return eqx.filter_vmap(append_rollout)(buffers, *experiences)
