"""The supervisor between a new policy and a machine: predicted change, approval, and the return to an earlier policy.

Its state follows from the run's metrics, so it is the same after a resume.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import UserError
from ..models import Controller
from ..robots import AbstractRobot, EpisodeRecord
from ..robots.earned import is_earned
from ..tasks import Task
from .approval import Approval
from .forecast import forecast, interpolate
from .judgement import GuardSettings, GuardState, judge_metrics
from .learning import as_seen
from .parts import AbstractRecorder, AbstractSupervisor, Candidate, Decision, EpisodeSummary, Meanwhile

SHARES = (1.0, 0.5, 0.25)
"""How much of a policy's change is tried, one after the other, before the old policy is kept."""


class Guard(AbstractSupervisor):
    """Decides before each episode which policy runs, and within which share of the command range."""

    def __init__(self, task: Task, settings: GuardSettings, approve: Approval | None = None) -> None:
        self.task, self.settings, self.approve = task, settings, approve
        self.state = GuardState(settings.first_authority)
        self._ran: Controller | None = None
        self._record: EpisodeRecord | None = None
        self._good: Controller | None = None

    def decide(self, candidate: Candidate, meanwhile: Meanwhile) -> Decision:
        """The policy that may run, and the limits."""
        if self._record is None or self._ran is None:
            decision = self._decide_first(candidate, meanwhile)
        elif candidate.chosen_by_operator:
            decision = Decision(candidate.policy)
        elif self.state.go_back and self._good is not None:
            decision = self._go_back(self._good)
        else:
            decision = self._decide_next(candidate, self._ran, self._record, meanwhile)
        return decision._replace(authority=self.state.authority)

    def judge(self, summary: EpisodeSummary, policy: Controller) -> None:
        """Judge what came out."""
        self._record, self._ran = summary.record, policy
        self.state = judge_metrics(self.state, self.settings, summary.metrics)
        if self.state.good_episode == summary.episode:
            self._good = policy

    def resume(self, recorder: AbstractRecorder, episode: int, robot: AbstractRobot, name: str) -> list[str]:
        """Remember the last and the last good policy, and what was earned on this machine."""
        if episode == 0:
            return []
        machine = robot.machine_id if robot.has_authority else ""
        self.state, moved = recall(self.settings, recorder.metrics(), machine, recorder.identity)
        spec = self.task.spec
        self._record, self._ran = recorder.load_record(episode, spec), recorder.load_policy(episode, spec)
        if self.state.good_episode:
            self._good = recorder.load_policy(self.state.good_episode, spec)
        earned, given = self.state.authority, self.settings.authority
        if given is not None:
            self.state = dataclasses.replace(self.state, authority=min(earned, given))
        if moved and robot.has_authority:
            share = 100 * self.settings.first_authority
            return [
                f"the last episode ran on another machine, or was not run by you here: this machine starts with "
                f"{share:.0f} % of its range"
            ]
        if given is not None and given > earned:
            return [f"authority is {given:g}, but the run has earned {earned:g} so far and goes on with that"]
        return []

    def _decide_first(self, candidate: Candidate, meanwhile: Meanwhile) -> Decision:
        share = f"{100 * self.state.authority:.0f} % of the command range"
        if not self._ask_approval(f"the first one, nothing measured yet, with {share}", meanwhile):
            raise UserError("The operator did not approve the first policy; nothing moved.")
        return Decision(candidate.policy)

    def _go_back(self, good: Controller) -> Decision:
        why = f"the last episode's error was {self.state.excess:.1f} times the usual one"
        if math.isnan(self.state.excess):
            why = "nothing of the last episode was measured"
        reason = f"{why}: back to the policy of episode {self.state.good_episode}"
        return Decision(good, prediction_holds=False, reason=reason)

    def _decide_next(
        self, candidate: Candidate, ran: Controller, record: EpisodeRecord, meanwhile: Meanwhile
    ) -> Decision:
        """The whole change of the policy if it may run, or a part of it, or the policy that ran last."""
        rollout, score = as_seen(candidate.policy, record), self.task.score
        before, cost = as_seen(ran, record), None if self.task.cost.goal.tracks else self.task.cost
        reason = ""
        for share in SHARES:
            policy = candidate.policy if share == 1.0 else interpolate(ran, candidate.policy, share)
            predicted = forecast(policy, ran, candidate.dynamics, rollout, score, before, cost)
            if share == 1.0:
                reason = f"the new policy is refused ({predicted}); the old one runs again"
            if not self.settings.allow(predicted):
                continue
            part = "" if share == 1.0 else f"goes only {share:g} of its way: {predicted}"
            if not self._ask_approval(part or str(predicted), meanwhile):
                reason = "the operator did not approve the new policy; the old one runs again"
                break
            return Decision(policy, prediction_holds=not part, reason=f"the new policy {part}" if part else "")
        return Decision(ran, prediction_holds=False, reason=reason)

    def _ask_approval(self, question: str, meanwhile: Meanwhile) -> bool:
        return self.approve is None or self.approve(question, meanwhile)


def recall(
    settings: GuardSettings, rows: Iterable[Mapping[str, Any]], machine: str, run: str
) -> tuple[GuardState, bool]:
    """The state after these lines of metrics.jsonl, and whether the last episode ran elsewhere.

    What was earned on one machine does not hold on another, and only this user's own lines of this run count; see
    `robots.earned`.
    """
    state, moved = GuardState(settings.first_authority), False
    for row in rows:
        moved = not is_earned(row, machine, run)
        state = dataclasses.replace(state, authority=state.authority if moved else float(row["authority"]))
        state = judge_metrics(state, settings, row)
        if moved:
            state = dataclasses.replace(state, authority=settings.first_authority)
    return state, moved
