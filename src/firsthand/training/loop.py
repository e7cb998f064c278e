"""The training loop: the six lines of the algorithm, and around them what a run keeps."""

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..agent import Imagined, Improvement, LearnerState, Rollout, append, update_model, update_policy
from ..agent.model_learning import ModelReport, prediction_error
from ..errors import UserError
from ..evaluation import tracking_metrics
from ..models import Policy
from ..robots import AbstractRobot, EpisodeRecord
from ..runs import RunFolder
from ..runs.pytrees import from_arrays, to_arrays
from ..tasks import Task
from .callbacks import Callback, EpisodeAbandoned, EpisodeSummary
from .config import TrainingConfig
from .data import as_rollout, at_rest_in, imagined_starts, is_excited, smooth_excitation, visited_rows
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

        goals = task.sample_goals(rng, self.whereabouts(), task.trajectories)
        excited = is_excited(settings, self.episode) and not self.prior.has_seen_motion
        excitation = smooth_excitation(task, settings.excitation, rng) if excited else None
        self.phase = "moving"
        record = self.robot.run_episode(policy, goals, excitation)
        self.phase = "learning"
        began = time.monotonic()
        rollout = as_rollout(task.spec, record)
        novelty = prediction_error(self.state.dynamics, rollout)
        self.buffer = append(self.buffer, rollout)
        self.state, model = update_model(self.state, self.buffer, rollout, settings)
        self.state, report = self.improved(record, rollout, model, rng)
        growth = closed_loop_growth(policy, self.state.dynamics, rollout)
        jax.block_until_ready(self.state)
        update_time = time.monotonic() - began

        self.episode += 1
        # What a spike or a stuck sensor says is no error of the robot's.
        sound = dataclasses.replace(record, valid=np.asarray(rollout.valid))
        metrics = {
            "episode": self.episode,
            "robot_time_s": self.episode * task.episode_s,
            **episode_metrics(task, sound, self.state, model, report, novelty=novelty, growth=growth),
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

    def improved(
        self, record: EpisodeRecord, rollout: Rollout, model: ModelReport, rng: np.random.Generator
    ) -> tuple[LearnerState, Improvement]:
        """The policy's update, along the measured trajectories and those imagined besides."""
        imagined = self.imagined_in_all(record, rng)
        return update_policy(self.state, self.task.cost, rollout, imagined, model, self.config.settings)

    def imagined_in_all(self, record: EpisodeRecord, rng: np.random.Generator) -> Imagined | None:
        """Those of the preconditioned steps, then what refinement needs besides.

        Drawn one after the other, so that a run is the same with and without refinement until it begins.
        """
        settings = self.config.settings
        few = self.imagined(record, settings.imagination.trajectories, rng)
        more = self.imagined(record, settings.imagined_trajectories - settings.imagination.trajectories, rng)
        return few if few is None or more is None else few.joined(more)

    def imagined(self, record: EpisodeRecord, count: int, rng: np.random.Generator) -> Imagined | None:
        """Starts and references of imagined trajectories; None for none."""
        rows = visited_rows(int(self.buffer.size), count, rng)
        return imagined_starts(self.task, record, count, rng, np.asarray(self.buffer.states[rows]))

    def whereabouts(self) -> np.ndarray:
        """What the robot measures, or, where that is nonsense, home: goals must be drawn from somewhere."""
        measured = self.robot.measured()
        home = at_rest_in(self.task.spec, np.asarray(self.task.home))
        return measured if np.isfinite(measured).all() else home

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
            # A run that was begun before there was refinement goes on without it.
            restored = from_arrays(self._checkpoint(), checkpoint.arrays, may_lack="refinement")
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
    task: Task,
    record: EpisodeRecord,
    state: LearnerState,
    model: ModelReport,
    report: Improvement,
    *,
    novelty: Any,
    growth: Any,
) -> dict[str, Any]:
    """What the robot did, as far as its sensors can be believed (`record.valid`), and what both updates did with it."""
    tracking = tracking_metrics(task.spec, (record,))
    return {
        "tracking_error": tracking.mean_error,
        "rms_error": tracking.rms_error,
        "max_error": tracking.max_error,
        "controller_loss": tracking.rms_error**2,
        "cost": float(report.cost),
        "model_loss": float(model.loss),
        "prediction_error": float(novelty),
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
