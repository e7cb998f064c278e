"""The training loop: the six lines of the algorithm, and around them what a run keeps."""

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..agent import Agent, AgentState, Experience, LearnerState, Update, append
from ..agent.buffer import make_room
from ..errors import UserError
from ..evaluation import tracking_metrics
from ..models import Policy
from ..robots import AbstractRobot, EpisodeRecord
from ..runs import RunFolder
from ..runs.pytrees import from_arrays, to_arrays
from ..tasks import Task
from .callbacks import Callback, EpisodeAbandoned, EpisodeSummary
from .config import TrainingConfig
from .data import as_rollout, plan_episode, prepare_experience
from .health import closed_loop_growth
from .prior import Prior

MOST_REFUSED = 3
"""So many refused updates in a row stop the run."""


SEEN = 0.5
"""A policy is proven only by an episode of which more than this share was seen."""

PROVEN_OVER = 3
"""Episodes that a policy's proof looks at: its own and the ones before it."""


def proof(errors: Sequence[float]) -> float:
    """How well the last episode's policy is proven, given the errors of the episodes so far; the lower, the better.

    The larger of its own error and the mean over `PROVEN_OVER` episodes. References differ in difficulty: one easy
    episode proves little, unless the policies just before, which are much like it, did well too.
    """
    recent = [error for error in errors[-PROVEN_OVER:] if np.isfinite(error)]
    return max(errors[-1], float(np.mean(recent))) if recent else float("nan")


FIRST_CAPACITY = 1 << 20
"""Most transitions that the buffer is made for at first (838 episodes of the excavator); it doubles when it is full."""


class TrainingStopped(Exception):
    """The run was stopped because learning broke down; the last good parameters are kept."""


class Trainer:
    """Runs Algorithm 1 on a robot and keeps what happens in a run folder."""

    def __init__(
        self,
        robot: AbstractRobot,
        config: TrainingConfig,
        run: RunFolder | None = None,
        callbacks: Sequence[Callback] = (),
        prior: Prior | None = None,
    ) -> None:
        self.robot, self.config, self.run, self.callbacks = robot, config, run, callbacks
        self.task = robot.task
        spec = self.task.spec
        self.prior = prior or Prior()
        self.agent = Agent(spec, self.task.cost, config.settings)
        self.state = self.prior.initial(LearnerState.random(spec, config.settings, seed=config.seed))
        of_logs = config.settings.model.log_episodes * self.task.trajectories * self.task.steps
        own = config.episodes * self.task.trajectories * self.task.steps
        self.buffer = self.prior.buffer(self.task, min(own, FIRST_CAPACITY), of_logs)
        self.episode = 0
        """Episodes done."""
        self.stop_requested = False
        self.phase = ""
        """What goes on now: the robot is `moving`, or the learner is `learning`."""
        self.operators_policy: Policy | None = None
        """A policy that a person has put in place; it needs no approval."""
        self.best_error = float("inf")
        """The `proof` of the policy that is kept."""
        self._errors: list[float] = []
        robot.stop_wanted = lambda: self.stop_requested

    def train(self) -> None:
        """Episodes until the configured number is reached or a stop is requested."""
        while self.episode < self.config.episodes and not self.stop_requested:
            try:
                self.run_episode()
            except EpisodeAbandoned:
                self.stop_requested = True

    def run_episode(self) -> EpisodeSummary:
        """One episode of Algorithm 1, then its files."""
        self.phase = ""
        task, settings = self.task, self.config.settings
        if self.episode == 0:  # before the callbacks, which look at the policy that is about to run
            self.state = self.prior.warm_start(self.state, task, settings, seed=self.config.seed)
        for callback in self.callbacks:
            callback.before_episode(self, self.episode + 1)
        policy = self.state.policy
        rng = np.random.Generator(np.random.Philox(key=[self.config.seed, self.episode]))

        goals, excitation = plan_episode(
            task, settings, self.episode, self.robot.measured(), rng, has_seen_motion=self.prior.has_seen_motion
        )
        self.phase = "moving"
        record = self.robot.run_episode(policy, goals, excitation)
        self.phase = "learning"
        began = time.monotonic()
        experience = self.prepare(record, rng)
        before = AgentState(self.state, make_room(self.buffer, record.valid.size))
        after, update = self.agent.observe(before, experience)
        self.state, self.buffer = after.learner, after.buffer
        rollout = experience.rollout
        assert rollout is not None
        growth = closed_loop_growth(policy, self.state.dynamics, rollout)
        jax.block_until_ready(self.state)
        update_time = time.monotonic() - began

        self.episode += 1
        # What a spike or a stuck sensor says is no error of the robot's.
        sound = dataclasses.replace(record, valid=np.asarray(rollout.valid))
        metrics = {
            "episode": self.episode,
            "robot_time_s": self.episode * task.episode_s,
            **episode_metrics(task, sound, self.state, update, growth),
            "update_time_s": update_time,
        }
        if self.robot.has_authority:
            metrics |= {"authority": self.robot.authority, "machine": self.config.robot}
        summary = EpisodeSummary(self.episode, metrics, record)
        self._keep(summary, policy)
        for callback in self.callbacks:
            callback.after_episode(self, summary)
        if int(self.state.refused_in_a_row) >= MOST_REFUSED:
            raise TrainingStopped(
                f"{MOST_REFUSED} updates in a row were refused because the model or the policy step was not sound "
                f"(last at episode {self.episode}); the last good policy is kept."
            )
        return summary

    def prepare(self, record: EpisodeRecord, rng: np.random.Generator) -> Experience:
        """What the agent learns from: what the robot did, and starts of imagined trajectories."""
        return prepare_experience(self.task, self.config.settings, self.buffer, record, rng)

    def _keep(self, summary: EpisodeSummary, policy: Policy) -> None:
        """Files of this episode, in the order that a crash at any instant can be resumed from."""
        if self.run is None:
            return
        arrays = {**summary.record.arrays(), **policy_arrays(policy)}
        self.run.save_episode(self.episode, arrays, {"episode": self.episode})
        self.run.append_metrics(summary.metrics)
        error = summary.metrics["tracking_error"]
        self._errors = [*self._errors, error][-PROVEN_OVER:]
        if proof(self._errors) < self.best_error and summary.metrics["valid_share"] > SEEN:
            self.best_error = proof(self._errors)
            self.run.save_best(policy_arrays(policy), {"episode": self.episode, "tracking_error": error})
        self._save_checkpoint()

    def put(self, state: LearnerState) -> None:
        """A person puts another learner or policy in place, between two episodes; it holds after a resume, too."""
        before = self.state, self.operators_policy
        self.state, self.operators_policy = state, state.policy
        try:
            self._save_checkpoint()
        except BaseException:
            self.state, self.operators_policy = before
            raise

    def _save_checkpoint(self) -> None:
        if self.run is None or self.episode == 0:
            return
        info: dict[str, Any] = {"best_error": self.best_error}
        if self.state.policy is self.operators_policy:
            info["operators_policy"] = self.config.robot
        self.run.save_checkpoint(self.episode, to_arrays(self._checkpoint()), info)

    def _checkpoint(self) -> dict[str, Any]:
        return {"learner": self.state, "robot": self.robot.snapshot()}

    def resume(self) -> list[str]:
        """Go back to the last good checkpoint of the run; returns what the user should know about it."""
        assert self.run is not None
        notes: list[str] = []
        if self.run.checkpoints():
            checkpoint = self.run.load_checkpoint()
            notes = list(checkpoint.notes)
            restored = from_arrays(self._checkpoint(), checkpoint.arrays)
            self.state = restored["learner"]
            self.robot.restore(restored["robot"])
            self.episode = checkpoint.episode
            self.best_error = float(checkpoint.info["best_error"])
            # The same weights on the same robot: what the person decided still holds.
            if checkpoint.info.get("operators_policy") == self.config.robot:
                self.operators_policy = self.state.policy
        self.run.rewind(self.episode)
        rows = self.run.read_metrics()
        errors = [float("nan") if row["tracking_error"] is None else row["tracking_error"] for row in rows]
        self._errors = errors[-PROVEN_OVER:]
        self._restore_best(errors, [row["valid_share"] for row in rows])
        for episode in range(1, self.episode + 1):
            arrays, _ = self.run.load_episode(episode)
            self.buffer = append(self.buffer, as_rollout(self.task.spec, EpisodeRecord.from_arrays(arrays)))
        return notes

    def _restore_best(self, errors: list[float], seen: list[float]) -> None:
        """Where the kept policy is one of an episode that is done again, or gone, keep the best of those before."""
        assert self.run is not None
        with contextlib.suppress(UserError):  # damaged
            best = self.run.load_best()
            if best is not None and best[1]["episode"] <= self.episode:
                return
        proofs = [proof(errors[: k + 1]) if share > SEEN else float("nan") for k, share in enumerate(seen)]
        if not np.isfinite(proofs).any():
            self.run.drop_best()
            self.best_error = float("inf")
            return
        k = int(np.nanargmin(proofs))
        arrays = {n: a for n, a in self.run.load_episode(k + 1)[0].items() if n.startswith("policy.")}
        self.run.save_best(arrays, {"episode": k + 1, "tracking_error": errors[k]})
        self.best_error = proofs[k]


def episode_metrics(
    task: Task, record: EpisodeRecord, state: LearnerState, update: Update, growth: Any
) -> dict[str, Any]:
    """What the robot did, as far as its sensors can be believed (`record.valid`), and what both updates did with it."""
    model, report = update.model, update.policy
    tracking = tracking_metrics(task.spec, (record,))
    return {
        "tracking_error": tracking.mean_error,
        "rms_error": tracking.rms_error,
        "max_error": tracking.max_error,
        "controller_loss": tracking.rms_error**2,
        "cost": float(report.cost),
        "model_loss": float(model.loss),
        "prediction_error": float(update.prediction_error),
        "closed_loop_growth": float(growth),
        "gradient_norm": float(report.step.gradient_norm),
        "discount": float(report.step.discount),
        "step_norm": float(report.step.step_norm),
        "command_step": float(report.step.command_step_norm),
        "policy_steps": int(report.steps_taken),
        "predicted_cost": float(report.predicted_cost),
        "surprise": float(report.surprise),
        "deviation": float(report.deviation),
        "radius": float(state.radius),
        "refined": bool(state.refinement.active),
        "cg_iterations": int(report.step.iterations),
        "cg_residual": float(report.step.relative_residual),
        "update_accepted": bool(report.step.accepted),
        "refused_updates": int(state.refused),
        "command_change": tracking.command_change,
        "limit_hits": tracking.limit_hits,
        "valid_share": float(record.valid.mean()),
    }


def policy_arrays(policy: Policy) -> dict[str, np.ndarray]:
    """The policy's weights as named arrays."""
    named = {}
    for i, (weight, bias) in enumerate(policy.layers):
        named[f"policy.{i}.weight"], named[f"policy.{i}.bias"] = np.asarray(weight), np.asarray(bias)
    return named


def policy_from_arrays(spec: Any, arrays: dict[str, np.ndarray]) -> Policy:
    """The policy from named arrays; others are ignored."""
    layers = tuple(
        (jax.numpy.asarray(arrays[f"policy.{i}.weight"]), jax.numpy.asarray(arrays[f"policy.{i}.bias"]))
        for i in range(len(spec.policy.hidden) + 1)
    )
    return Policy(layers, spec)
