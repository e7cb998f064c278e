"""Several seeds of one set-up, trained side by side: every compiled call serves all of them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from firsthand.agent import Imagined, LearnerState, Rollout, Settings, update_model, update_policy
from firsthand.agent.buffer import Buffer, written
from firsthand.agent.model_learning import ModelReport, prediction_error
from firsthand.errors import UserError
from firsthand.evaluation import tracking_metrics
from firsthand.evaluation.metrics import TrackingMetrics
from firsthand.models import Policy
from firsthand.plants.base import AbstractPlant
from firsthand.robots.base import EpisodeRecord
from firsthand.robots.simulated import SimulatedRobot, run_trajectories
from firsthand.tasks import Task
from firsthand.training.data import as_rollout, at_rest_in, imagined_starts, is_excited, smooth_excitation, visited_rows


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
        self.plant, self.task, self.settings, self.seeds = plant, task, settings, tuple(seeds)
        self.episode = 0
        """Episodes done."""
        self.state = stacked([LearnerState.random(task.spec, settings, seed=seed) for seed in self.seeds])
        layout = task.spec.layout
        capacity = episodes * task.trajectories * task.steps
        empty = Buffer.empty(capacity, layout.size, layout.num_commands, layout.num_measured)
        self.buffer = stacked([empty] * len(self.seeds))
        robots = [SimulatedRobot(plant, task, seed=seed).snapshot() for seed in self.seeds]
        self._now, self._key = stacked([now for now, _ in robots]), stacked([key for _, key in robots])
        self.records: list[EpisodeRecord] = []
        """What each robot did in the last episode."""

    def run_episode(self, *, learn_model: bool = True) -> dict[str, np.ndarray]:
        """One episode of every seed; its metrics, one entry per seed.

        With `learn_model` false the model stays as it is (the data is kept all the same).
        """
        task, settings = self.task, self.settings
        measured = np.asarray(self._now[1])[:, : task.spec.layout.num_measured]
        rngs = [np.random.Generator(np.random.Philox(key=[seed, self.episode])) for seed in self.seeds]
        home = at_rest_in(task.spec, np.asarray(task.home))
        goals, excitations = [], []
        excited = is_excited(settings, self.episode)
        for rng, y in zip(rngs, measured, strict=True):
            goals.append(task.sample_goals(rng, y if np.isfinite(y).all() else home, task.trajectories))
            shape = (task.trajectories, task.steps, task.spec.layout.num_commands)
            excitations.append(smooth_excitation(task, settings.excitation, rng) if excited else np.zeros(shape))
        policies = self.state.policy
        self._now, self._key, played = _episodes(
            self.plant,
            policies,
            task.spec,
            self._now,
            jnp.asarray(np.stack(goals), jnp.float32),
            jnp.asarray(np.stack(excitations), jnp.float32),
            self._key,
        )
        played = [np.asarray(part, np.float32) for part in played]
        self.records = [EpisodeRecord.complete(*(part[i] for part in played)) for i in range(len(self.seeds))]
        rollout = stacked([as_rollout(task.spec, record) for record in self.records])
        novelty = _novelty(self.state.dynamics, rollout)
        self.buffer = _append(self.buffer, rollout)
        imagined = []
        for i, (record, rng) in enumerate(zip(self.records, rngs, strict=True)):
            parts = []
            for count in (
                settings.imagination.trajectories,
                settings.imagined_trajectories - settings.imagination.trajectories,
            ):
                rows = visited_rows(int(self.buffer.size[i]), count, rng)
                visited = np.asarray(self.buffer.states[i, rows])
                parts.append(imagined_starts(task, record, count, rng, visited))
            few, more = parts
            imagined.append(few if few is None or more is None else few.joined(more))
        self.state, model_loss, report = _updates(
            self.state,
            self.buffer,
            task.cost,
            rollout,
            self._common(imagined),
            settings,
            learn_model,
        )
        self.episode += 1
        sound = [dataclasses.replace(r, valid=np.asarray(rollout.valid[i])) for i, r in enumerate(self.records)]
        tracking = [tracking_metrics(task.spec, (record,)) for record in sound]
        return {
            "tracking_error": np.array([t.mean_error for t in tracking]),
            "controller_loss": np.array([t.rms_error**2 for t in tracking]),
            "cost": np.asarray(report.cost),
            "model_loss": np.asarray(model_loss),
            "prediction_error": np.asarray(novelty),
            "gradient_norm": np.asarray(report.step.gradient_norm),
            "step_norm": np.asarray(report.step.step_norm),
            "refused_updates": np.asarray(self.state.refused),
        }

    def _common(self, imagined: list[Imagined | None]) -> Imagined | None:
        """One program serves all seeds: they have imagined trajectories all, or none has."""
        missing = [seed for seed, starts in zip(self.seeds, imagined, strict=True) if starts is None]
        if 0 < len(missing) < len(self.seeds):
            raise UserError(
                f"in episode {self.episode + 1} of seed {missing[0]} no trajectory had a sound start to imagine others "
                "from, and the other seeds' had: they cannot go on together."
            )
        return None if missing else stacked(imagined)

    def policy(self, index: int) -> Policy:
        """The newest policy of one seed."""
        return member(self.state.policy, index)

    def follow(self, speed: float | None = None) -> list[tuple[EpisodeRecord, ...]]:
        """For every seed, what its newest policy does on the task's evaluation references."""
        references = self.task.evaluation(self.task.evaluation_speed if speed is None else speed)
        robot = SimulatedRobot(self.plant, self.task)
        return [robot.follow(self.policy(i), references) for i in range(len(self.seeds))]

    def evaluate(self, speed: float | None = None) -> list[TrackingMetrics]:
        """For every seed, the metrics of its newest policy over all evaluation references together."""
        return [tracking_metrics(self.task.spec, records) for records in self.follow(speed)]

    def remember(self, records: Sequence[EpisodeRecord]) -> None:
        """Put an episode of every seed into the buffers again, as after `restore` without them."""
        self.buffer = _append(self.buffer, stacked([as_rollout(self.task.spec, record) for record in records]))

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


def stacked(trees: Sequence[Any]) -> Any:
    """Pytrees of one structure as one pytree with a leading axis; what is no array is taken from the first."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *trees)


def member(tree: Any, index: int) -> Any:
    """One of the stacked pytrees."""
    return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, tree)


@eqx.filter_jit
def _episodes(plant, policies, spec, now, goals, excitations, keys):
    def one(policy, start, goals, excitation, key):
        following, episode_key = jax.random.split(key)
        end, played = run_trajectories(plant, policy, spec, start, goals, excitation, episode_key)
        return end, following, played

    return eqx.filter_vmap(one)(policies, now, goals, excitations, keys)


@eqx.filter_jit
def _novelty(dynamics, rollout):
    return eqx.filter_vmap(prediction_error)(dynamics, rollout)


@eqx.filter_jit(donate="all-except-first")
def _store(rollout: Rollout, buffer: Buffer) -> Buffer:
    def one(buffer: Buffer, rollout: Rollout) -> Buffer:
        measured = buffer.following.shape[1]
        valid = rollout.valid.reshape(-1)
        order = jnp.argsort(~valid, stable=True)
        x = rollout.states[:, :-1].reshape(valid.size, -1)[order]
        y = rollout.states[:, 1:, :measured].reshape(valid.size, -1)[order]
        u = rollout.commands.reshape(valid.size, -1)[order]
        return written(buffer, (x, u, y), valid.sum().astype(jnp.int32))

    return eqx.filter_vmap(one)(buffer, rollout)


def _append(buffer: Buffer, rollout: Rollout) -> Buffer:
    rows = rollout.valid.shape[1] * rollout.valid.shape[2]
    if int(buffer.size.max()) + rows > buffer.states.shape[1]:
        raise ValueError("more episodes than `episodes` said")
    return _store(rollout, buffer)


@eqx.filter_jit
def _updates(state, buffer, cost, rollout, imagined, settings, learn_model: bool):
    def one(state, buffer, rollout, imagined, settings):
        model = ModelReport(jnp.asarray(jnp.nan), jnp.asarray(True))
        if learn_model:
            state, model = update_model(state, buffer, rollout, settings)
        state, report = update_policy(state, cost, rollout, imagined, model, settings)
        return state, model.loss, report

    if not settings.refines:
        return eqx.filter_vmap(one)(state, buffer, rollout, imagined, settings)
    # One after the other: side by side, each would compute refinement and what it stands in for.
    arrays, others = eqx.partition((state, buffer, rollout, imagined, settings), eqx.is_array)
    return jax.lax.map(lambda part: one(*eqx.combine(part, others)), arrays)
