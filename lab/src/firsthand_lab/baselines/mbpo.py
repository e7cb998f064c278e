"""MBPO (Janner et al. 2019) with our model: SAC of sbx learns mostly from short branches of the learned model.

Every 250 steps `BRANCHES` roll-outs of the model branch off from measured states, with the actor's own random actions
and the references that were followed there. Their length grows from 1 to `LONGEST` over the first `GROWS` episodes. A
batch of SAC has 5 % measured and 95 % imagined transitions. The model and how it learns are those of our fast preset,
once per episode: one deterministic network in place of the publication's seven probabilistic ones. The reward is known
as a function, which the publication learns.

Checked in tests/baselines/test_mbpo.py: with a true model, branches are what the robot itself does.
"""

# sbx and stable-baselines3 are the extra `peers`, which need not be installed.
# pyright: reportMissingImports=false

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from firsthand.robots.base import preview_indices
from firsthand.tasks import Task
from firsthand.training import TrainingConfig
from firsthand.training.learning import read_record
from firsthand_onboard.features import observation

from ..experiments.base import Report
from .ledger import Ledger, Stopwatch
from .neural_mpc.learner import ModelLearner, join_records
from .sb3 import count_parameters, environment, require
from .setup import plant_and_task
from .view import REWARD, RobotView

BRANCH_EVERY, BRANCHES, LONGEST, GROWS = 250, 2000, 5, 20
MEASURED = 0.05
"""Share of a batch that was measured."""
KEPT = 4 * 1250 // BRANCH_EVERY
"""Rounds of branches that are kept: about four episodes."""
UPDATES = 10
"""Gradient steps per control step; the publication has 20 to 40."""
SETTING = (
    f"SAC of sbx, {UPDATES} updates per step (20 to 40 published), {100 * (1 - MEASURED):.0f} % imagined; {BRANCHES} "
    f"branches of 1 to {LONGEST} steps every {BRANCH_EVERY}; our model and its training, one network in place of seven"
)
Transitions = dict[str, np.ndarray]
"""`observations`, `actions`, `rewards`, `next_observations`, a row each."""


@eqx.filter_jit
def _look(spec, states, previews):
    return jax.vmap(lambda x, r: observation(spec, x, r))(states, previews)


@eqx.filter_jit
def _advance(dynamics, spec, cost, states, actions, previews):
    low, high = jnp.asarray(spec.limits.command_low), jnp.asarray(spec.limits.command_high)
    commands = (low + high) / 2 + (high - low) / 2 * jnp.clip(actions, -1.0, 1.0)
    prices = jax.vmap(cost)(states, commands, previews[:, 0])
    return jax.vmap(dynamics)(states, commands), -REWARD * prices


class Branches:
    """Where branches begin: all measured states, each with the reference that was followed from there on."""

    def __init__(self, task: Task) -> None:
        self.task, self.states, self.previews = task, [], []

    def add(self, record: Any) -> None:
        """One more episode; trajectories with a step that is not sound are left out."""
        spec = self.task.spec
        rollout, sound = read_record(spec, record)
        whole = np.asarray(sound).all(axis=1)
        steps = record.commands.shape[1]
        self.states += list(np.asarray(rollout.states)[whole])
        self.previews += list(record.references[:, preview_indices(spec, steps)][whole])

    def imagine(
        self,
        dynamics: Callable,
        act: Callable[[np.ndarray], np.ndarray],
        count: int,
        length: int,
        rng: np.random.Generator,
    ) -> Transitions:
        """Branches of the model from random measured states."""
        states, previews = np.stack(self.states), np.stack(self.previews)
        which = rng.integers(len(states), size=count)
        k = rng.integers(previews.shape[1] - length, size=count)
        spec, cost = self.task.spec, self.task.cost
        x, rows = jnp.asarray(states[which, k]), []
        seen = np.asarray(_look(spec, x, jnp.asarray(previews[which, k])))
        for j in range(length):
            actions = np.asarray(act(seen), np.float32)
            x, rewards = _advance(dynamics, spec, cost, x, jnp.asarray(actions), jnp.asarray(previews[which, k + j]))
            after = np.asarray(_look(spec, x, jnp.asarray(previews[which, k + j + 1])))
            rows.append((seen, actions, np.asarray(rewards), after))
            seen = after
        names = ("observations", "actions", "rewards", "next_observations")
        table = {name: np.concatenate(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
        sound = np.all([np.isfinite(v).reshape(len(v), -1).all(axis=1) for v in table.values()], axis=0)
        return {name: column[sound] for name, column in table.items()}


class Rounds:
    """The latest branches, of which a batch is drawn."""

    def __init__(self) -> None:
        self.kept: list[Transitions] = []

    def remember(self, branches: Transitions) -> None:
        """Another round; the oldest ones are dropped. A round without a finite branch does not count."""
        if len(branches["rewards"]):
            self.kept = [*self.kept, branches][-KEPT:]

    def draw(self, count: int, rng: np.random.Generator) -> Transitions:
        """Transitions of all rounds; every one is as likely as any other."""
        lengths = np.asarray([len(r["rewards"]) for r in self.kept])
        which = rng.choice(len(lengths), count, p=lengths / lengths.sum())
        parts = []
        for i in np.unique(which):
            rows = rng.integers(lengths[i], size=int((which == i).sum()))
            parts.append({name: column[rows] for name, column in self.kept[i].items()})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def mixed_buffer() -> type:
    """The replay buffer whose samples are mostly imagined."""
    import torch
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    class MixedBuffer(ReplayBuffer):
        """Measured transitions, and rounds of branches beside them."""

        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self.rounds = Rounds()
            self._rng = np.random.default_rng(0)

        def sample(self, batch_size: int, env: Any = None) -> Any:
            """As ever before the first branches; then few that were measured."""
            if not self.rounds.kept:
                return super().sample(batch_size, env)
            few = max(round(MEASURED * batch_size), 1)
            measured = super().sample(few, env)
            imagined = self.rounds.draw(batch_size - few, self._rng)

            def both(own: Any, name: str) -> Any:
                column = imagined[name].astype(np.float32)
                return torch.cat([own, torch.as_tensor(column.reshape(len(column), -1))])

            order = torch.as_tensor(self._rng.permutation(batch_size))
            dones = torch.cat([measured.dones, torch.zeros((batch_size - few, 1))])
            return ReplayBufferSamples(
                both(measured.observations, "observations")[order],
                both(measured.actions, "actions")[order],
                both(measured.next_observations, "next_observations")[order],
                dones[order],
                both(measured.rewards, "rewards")[order],
            )

    return MixedBuffer


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Learn for the given robot time; an interrupted job begins anew."""
    require("mbpo")
    import sbx
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)
    tiny, seed = parameters["setting"] == "tiny", parameters["seed"]
    plant, task = plant_and_task(parameters["robot"], tiny=tiny)
    view = RobotView(plant, task, seed=seed)
    ledger = Ledger(folder, view.stepper, parameters["marks"], report)
    per_episode = task.trajectories * task.steps
    steps = parameters["episodes"] * per_episode
    # SAC sees the plain register, and so does the model.
    changes: dict[str, Any] = {"observer.use": 0, **({"model.steps": 10} if tiny else {})}
    config = TrainingConfig.of(parameters["robot"], "fast", episodes=parameters["episodes"], seed=seed, changes=changes)
    model = ModelLearner(task, config.settings, seed=seed, capacity=steps)
    branches, rng, watch = Branches(task), np.random.default_rng(seed), Stopwatch(view)
    sac: Any = sbx.SAC(
        "MlpPolicy",
        DummyVecEnv([lambda: environment(view)]),
        seed=seed,
        device="cpu",
        learning_starts=per_episode,
        buffer_size=steps + 1,
        gradient_steps=1 if tiny else UPDATES,
        replay_buffer_class=mixed_buffer(),
    )

    def act(seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        return sac.predict(seen, deterministic=True)[0]

    class Episodes(BaseCallback):
        """Learns the model after whole episodes, and branches every so often."""

        seen = 0

        def _on_step(self) -> bool:
            ledger.show(view, f"{sac._n_updates} updates")
            if view.episode > self.seen:
                self.seen = view.episode
                whole = join_records(view.records)
                model.append(whole)
                branches.add(whole)
            if branches.states and self.num_timesteps % min(BRANCH_EVERY, per_episode) == 0:
                length = 1 + round((LONGEST - 1) * min(view.episode / GROWS, 1.0))
                count = 8 if tiny else BRANCHES
                sampled = branches.imagine(
                    model.state.dynamics, lambda s: sac.predict(s, deterministic=False)[0], count, length, rng
                )
                sac.replay_buffer.rounds.remember(sampled)
            if view.episode > len(ledger.curves):
                done = view.episode
                ledger.episode(done, view.errors[-1], watch.take(), sac._n_updates + model.updates)
                if done < parameters["episodes"]:
                    ledger.test(done, act)
                    watch.restart()
            return view.episode < parameters["episodes"]

    sac.set_logger(Logger(None, []))  # its own would leave a folder in /tmp
    sac.learn(steps, callback=Episodes())
    ledger.test(parameters["episodes"], act)
    ledger.describe(parameters=count_parameters(sac, "droq") + model.parameters, setting=SETTING)
