"""The training loop: one episode of Algorithm 1 after the other.

The loop knows no file, no terminal and no thread. It is given a recorder (what is kept), a supervisor (which policy may
run), a control (what people ask for) and callbacks (who watches). Nothing outside changes the learner's state: a
supervisor returns a decision, a control hands over requests, and the loop acts on both between two episodes.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ..agent import LearnerState
from ..errors import UserError
from ..models import Controller
from ..robots import AbstractRobot, EpisodeRecord
from ..robots.base import EpisodeAbandoned, check_observed
from ..robots.earned import authority_metrics
from ..runs import atomic
from ..standstill import WINDOW, find_standstill
from .base_guard import base_metrics
from .bases import with_authority_of
from .config import TrainingConfig
from .fleet_guard import fleet_metrics
from .horizon import Horizon
from .learning import EpisodeUpdate, Learner, episode_metrics, measured_error, plan_episode, with_policy
from .parts import (
    AbstractControl,
    AbstractRecorder,
    AbstractSupervisor,
    Callback,
    CallbackList,
    Candidate,
    Checkpoint,
    Decision,
    EpisodeSummary,
    NoControl,
    NoSupervisor,
)
from .prior import Prior
from .recorder import MemoryRecorder
from .stopping import StopRequest

MAX_REFUSED_IN_A_ROW = 3
"""This many refused updates in a row stop the run."""

FIRST_CAPACITY = 1 << 20
"""Largest number of transitions that the buffer is made for at first (838 episodes of the excavator); it doubles when
it is full."""


class TrainingStopped(Exception):
    """The run was stopped because learning broke down; the last good parameters are kept."""


class Trainer:
    """Runs Algorithm 1 on a robot."""

    def __init__(
        self,
        robot: AbstractRobot,
        config: TrainingConfig,
        recorder: AbstractRecorder | None = None,
        *,
        supervisor: AbstractSupervisor | None = None,
        control: AbstractControl | None = None,
        callbacks: Sequence[Callback] = (),
        prior: Prior | None = None,
        stop: StopRequest | None = None,
        learner: type[Learner] = Learner,
        keep_going: bool = False,
    ) -> None:
        """`keep_going` leaves it at a notice where learning has stopped; otherwise `TrainingStopped` ends the run."""
        self.robot, self.config, self.task = robot, config, robot.task
        self.recorder = recorder or MemoryRecorder()
        self.supervisor, self.control = supervisor or NoSupervisor(), control or NoControl()
        self.callbacks, self.prior, self.stop = CallbackList(callbacks), prior or Prior(), stop or StopRequest()
        self.state = self.prior.initial(
            LearnerState.random(
                self.task.spec,
                config.settings,
                seed=config.seed,
                control=None if self.prior.base is None else self.prior.base.control,
            )
        )
        transitions = self.task.trajectories * self.task.steps
        capacity, of_logs = config.episodes * transitions, config.settings.model.log_episodes * transitions
        buffer = self.prior.buffer(self.task, min(capacity, FIRST_CAPACITY), of_logs)
        self.learner = learner(self.task, config.settings, buffer)
        self.horizon = Horizon(self.task)
        """How long trajectories are, for a robot that falls or runs away."""
        self.episode = 0
        """Episodes done."""
        self._robot_time_s = 0.0
        self._chosen_by_operator = False
        self._operators_policy: Controller | None = None
        self._keep_going = keep_going
        self._lines: deque[Mapping[str, Any]] = deque(maxlen=WINDOW)
        """The newest metrics since the run began or went on: the past is not held against a robot that was repaired."""
        robot.stop_wanted = lambda: self.stop.requested

    def train(self) -> None:
        """Episodes until the configured number is reached or a stop is requested."""
        while self.episode < self.config.episodes and not self.stop.requested:
            try:
                self.run_episode()
            except EpisodeAbandoned:
                self.stop.request()

    def run_episode(self) -> EpisodeSummary:
        """One episode of Algorithm 1: sample goals, run the policy on the robot, learn from what it did, record."""
        decision = self._decide()
        policy = decision.policy
        rng = np.random.Generator(np.random.Philox(key=[self.config.seed, self.episode]))

        goals, excitation = plan_episode(
            self.robot.task,
            self.config.settings,
            self.episode,
            self.robot.shares(self.robot.task.trajectories),
            rng,
            has_seen_motion=self.prior.has_seen_motion,
        )
        self.robot.horizon = self.horizon.steps
        if self.horizon.adaptive:
            self.learner.horizon = self.horizon.imagined_steps
        record, tried = self._move(decision, goals, excitation)
        check_observed(self.robot, record.valid, f"all trajectories of episode {self.episode + 1}")
        self.callbacks.after_motion(self.episode + 1)
        began = time.monotonic()
        self.state, update = self.learner.observe(self.state, record, rng)
        update_time_s = time.monotonic() - began

        self.episode += 1
        self._chosen_by_operator, self._operators_policy = False, None
        metrics = self._measure(policy, record, tried, update, update_time_s)
        summary = EpisodeSummary(self.episode, MappingProxyType(metrics), record)
        self.recorder.record(summary, policy, self._checkpoint())
        self._after_episode(summary, policy)
        return summary

    def _measure(
        self, policy: Controller, record: EpisodeRecord, tried: int, update: EpisodeUpdate, update_time_s: float
    ) -> dict[str, Any]:
        """The line of metrics.jsonl of the episode that just ended."""
        metrics = episode_metrics(self.episode, self.robot, record, self.state, update)
        metrics |= {"horizon": self.horizon.steps, "early_ends": record.early_ends(self.horizon.steps)}
        metrics["update_time_s"] = update_time_s
        if self.horizon.adaptive:
            self.horizon.update(record)  # chooses that of the next episode
        sound = np.asarray(update.valid)
        if policy.policy.control is not None:
            metrics |= base_metrics(self.task.spec, policy, record, tried, sound)
        if self.robot.members:
            identity = self.recorder.identity
            metrics |= fleet_metrics(self.robot, self.task, record, sound, identity, self.episode, self._robot_time_s)
        self._robot_time_s = float(metrics["robot_time_s"])
        if self.robot.has_authority:
            metrics |= authority_metrics(
                self.robot.machine_id, self.recorder.identity, self.episode, self.robot.authority
            )
            metrics["machine"] = self.config.robot
        return metrics

    def resume(self) -> list[str]:
        """Go on where the recorder was left; returns what the user should know about it."""
        resumed = self.recorder.resume(self._checkpoint())
        self.episode, self.state = resumed.episode, resumed.checkpoint.learner
        # The same weights on the same robot: what the operator decided still holds, and with the same observer.
        self._chosen_by_operator = resumed.checkpoint.chosen_on == self.config.robot
        self._operators_policy = resumed.checkpoint.operators_policy if self._chosen_by_operator else None
        self.robot.restore(resumed.checkpoint.robot)
        record = None
        for record in resumed.records:
            self.learner.remember(record)
        with atomic.using("metrics.jsonl of the run"):
            if record is not None:
                last = self.recorder.metrics()[-1]
                self._robot_time_s = float(last["robot_time_s"])
                self.horizon.resume(last.get("horizon", self.horizon.longest), record)
            notes = self.supervisor.resume(self.recorder, self.episode, self.robot, self.config.robot)
        return resumed.notes + notes

    def _move(self, decision: Decision, goals: np.ndarray, excitation: np.ndarray | None) -> tuple[EpisodeRecord, int]:
        """The episode, and how many of its trajectories ran the policy that was decided on: the first ones."""
        whole = len(goals)
        if decision.alone is None or self.robot.members:
            return self.robot.run_episode(decision.policy, goals, excitation), whole
        records: list[EpisodeRecord] = []

        def run(policy: Controller, until: int) -> None:
            done = sum(len(record.commands) for record in records)
            if until > done:
                part = slice(done, until)
                self.robot.goes_on = done > 0
                records.append(
                    self.robot.run_episode(policy, goals[part], None if excitation is None else excitation[part])
                )

        tried = 0
        try:
            for i, share in enumerate(decision.shares):
                if i and decision.tolerated:
                    error = measured_error(self.task.spec, EpisodeRecord.join(records))
                    if error > decision.tolerated[i - 1]:
                        break
                tried = max(round(share * whole), 1)
                run(decision.policy, tried)
            run(decision.alone, whole)
        finally:
            self.robot.goes_on = False
        return EpisodeRecord.join(records), tried

    def _decide(self) -> Decision:
        """The decision for the next episode, after all requests are carried out."""
        if self.episode == 0:  # before anybody looks at the policy that is about to run
            self.state = self.prior.warm_start(self.state, self.task, self.config.settings, seed=self.config.seed)
        self._apply_requests()
        self.control.wait_while_paused(self._apply_requests)
        candidate = Candidate(self._candidate(), self.state.dynamics, self._chosen_by_operator)
        decision = self.supervisor.decide(candidate, self._apply_requests)
        if self._chosen_by_operator:  # perhaps put in place while the supervisor waited: it needs no approval
            decision = decision._replace(policy=self._candidate(), prediction_holds=True, reason="", alone=None)
            if not candidate.chosen_by_operator:
                self.robot.run_alike()
        if decision.reason:
            self.callbacks.notify(decision.reason)
        if not decision.prediction_holds:
            self.state = with_policy(self.state, decision.policy)
        if decision.policy.policy.control is not None:
            self.state = with_authority_of(self.state, decision.policy)
        if decision.authority is not None and self.robot.has_authority:
            self.robot.authority = decision.authority
        self.callbacks.before_episode(self.episode + 1)
        return decision

    def _candidate(self) -> Controller:
        """The operator's choice with the observer that it ran with, or the learner's newest controller."""
        return self._operators_policy or self.state.controller

    def _apply_requests(self) -> None:
        """Carry out requests. Apart from learning, only this changes the learner's state."""
        while (request := self.control.next_request()) is not None:
            try:
                outcome = request.carry_out(self.state, self.episode)
                if outcome.learner is not None:
                    where = self.config.robot
                    checkpoint = Checkpoint(outcome.learner, self.robot.snapshot(), where, outcome.policy)
                    self.recorder.replace_checkpoint(self.episode, checkpoint)  # first: what is not kept does not run
                    self.state, self._chosen_by_operator = outcome.learner, True
                    self._operators_policy = outcome.policy
            except UserError as error:
                request.refuse(str(error))
            else:
                request.accept(outcome)

    def _after_episode(self, summary: EpisodeSummary, policy: Controller) -> None:
        self.supervisor.judge(summary, policy)
        self.callbacks.after_episode(summary)
        self._apply_requests()
        self._check_standstill(summary.metrics)

    def _check_standstill(self, metrics: Mapping[str, Any]) -> None:
        """End a run that no longer learns; everything is recorded by now."""
        self._lines.append(metrics)
        found = find_standstill(tuple(self._lines))
        why = "" if found is None else str(found)
        if int(self.state.refused_in_a_row) >= MAX_REFUSED_IN_A_ROW:
            why = (
                f"{MAX_REFUSED_IN_A_ROW} updates in a row were refused because the model or the policy step was not "
                f"sound (last at episode {self.episode}); the last good policy is kept."
            )
        if not why:
            return
        if not self._keep_going:
            raise TrainingStopped(why)
        self.callbacks.notify(why)
        self._lines.clear()

    def _checkpoint(self) -> Checkpoint:
        chosen_on = self.config.robot if self._chosen_by_operator else ""
        return Checkpoint(self.state, self.robot.snapshot(), chosen_on, self._operators_policy)
