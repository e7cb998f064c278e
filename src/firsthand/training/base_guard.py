"""Never worse than the base: how much authority the learned part has, and when it is taken back.

Within an episode the controller itself watches its error (`firsthand_onboard.base_control`): above `error_limit` the
learned part fades out and the base goes on alone. Between episodes this supervisor decides. After an episode that was
no worse than the base, the authority of the learned part grows. After a worse one it shrinks, and the last good policy
runs again. In each episode the learned part acts in a tenth of the trajectories first, then in a fifth, a half, all of
them, as long as it is no worse than the base; the base runs the others alone. So a bad policy affects only a tenth of
an episode, and is compared with the base under the same conditions. The state of this supervisor follows from the run's
metrics, so it is the same after a resume.

A task without a reference is judged by its cost per step, and only between episodes: there is no error that a
controller could watch within one. There a tenth of the first episode is open, and each good one opens more.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from firsthand_onboard import ControlSpec
from firsthand_onboard.base_control import FADE_S, NO_LIMIT, window_share
from firsthand_onboard.kinematics import output_error, tracked_output

from ..evaluation import tracking_metrics
from ..models import Controller
from ..robots import AbstractRobot, EpisodeRecord
from .bases import FIRST_AUTHORITY, on_base_of
from .parts import AbstractRecorder, AbstractSupervisor, Candidate, Decision, EpisodeSummary, Meanwhile
from .recorder import MIN_VALID_SHARE, measured_score


@dataclass(frozen=True)
class BaseSettings:
    """When the learned part has proven itself."""

    first_authority: float = FIRST_AUTHORITY["add"]
    """Its authority at first, as a share of half the command range."""
    growth: float = 1.5
    """Factor on it after an episode that was no worse than the base."""
    shrink: float = 0.5
    """Factor on it after one that was."""
    min_share: float = 0.25
    """It shrinks to at least this share of the first."""
    tolerance: float = 1.2
    """An episode is no worse than the base if its error (or cost) is at most this many times the base's."""
    trials: tuple[float, ...] = (0.1, 0.2, 0.5, 1.0)
    """Shares of an episode's trajectories in which it acts, one after the other, while it is no worse than the base.
    Where nothing is followed that is not known within an episode: then each good one opens the next share."""
    few: float = 0.5
    """Below this share a trial is few trajectories, …"""
    few_tolerance: float = 2.0
    """… of which a hard one alone has this many times the base's mean error."""
    proven: float = 0.5
    """Trials end where the model has predicted an episode that it had not seen with less error than this, relative to
    the usual change: what it then expects of a policy can be believed."""
    informed: bool = False
    """Whether the model has learned before the first episode, from logs: then that may be the first one."""
    limit: float = 1.3
    """The learned part fades out where the recent error exceeds the base's largest by this factor."""


@dataclass(frozen=True)
class BaseState:
    """The state after some episodes."""

    authority: float
    """Of the learned part in the next episode."""
    base_error: float = math.nan
    """The base's mean error, from the first episode; where nothing is followed, its cost per step."""
    base_peak: float = math.nan
    """The base's largest recent error, in the scale of the policy's inputs; NaN where nothing is followed."""
    good_episode: int = 0
    """The last episode that was no worse than the base."""
    go_back: str = ""
    """Why the last good policy runs next; empty where the newest does."""
    trial: int = 0
    """Which of `BaseSettings.trials` is next."""


def tolerance(settings: BaseSettings, share: float) -> float:
    """How many times the base's error is no worse than the base, after this share of an episode's trajectories."""
    return settings.few_tolerance if share < settings.few else settings.tolerance


def judge_with_base(state: BaseState, settings: BaseSettings, row: Mapping[str, Any]) -> BaseState:
    """The state after an episode, from its line of metrics.jsonl, where NaN is null."""
    number = {name: math.nan if row.get(name) is None else float(row[name]) for name in METRICS}
    error, episode = measured_score(row), int(row["episode"])
    follows, last = "score" not in row, len(settings.trials) - 1
    if number["valid_share"] <= MIN_VALID_SHARE or not math.isfinite(error):
        return dataclasses.replace(state, go_back="too little of the last episode was measured")
    if not math.isfinite(state.base_error):  # the first episode is the base's
        peak = number["largest_window_error"] if follows else math.nan
        predicted = settings.informed and number["prediction_error"] < settings.proven
        trial = last if predicted else 0
        return BaseState(settings.first_authority, error, peak, episode, trial=trial)
    smallest = settings.min_share * settings.first_authority
    base_error, share = state.base_error, 1.0
    if follows and math.isfinite(number["tried_error"]) and math.isfinite(number["alone_error"]):
        # The base ran, too: a fresher standard, and of the same conditions.
        base_error = (base_error + number["alone_error"]) / 2
        peak = max(state.base_peak, number["alone_window_error"])
        state = dataclasses.replace(state, base_error=base_error, base_peak=peak)
        error, share = number["tried_error"], number["learned_share"]
    if error > tolerance(settings, share) * base_error:
        ratio = error / base_error if base_error else math.inf
        why = f"the last episode's {'error' if follows else 'cost'} was {ratio:.2f} times the base's"
    elif number["base_share"] > 0:  # it was taken back in time: nothing is proven, nor is it worse than the base
        return dataclasses.replace(state, go_back="")
    else:
        return dataclasses.replace(
            state,
            authority=min(1.0, settings.growth * state.authority),
            good_episode=episode,
            go_back="",
            trial=last if number["prediction_error"] < settings.proven else min(state.trial + 1, last),
        )
    return dataclasses.replace(state, authority=max(smallest, settings.shrink * state.authority), go_back=why, trial=0)


METRICS = (
    *("valid_share", "largest_window_error", "base_share", "prediction_error"),
    *("learned_share", "tried_error", "alone_error", "alone_window_error"),
)


class BaseGuard(AbstractSupervisor):
    """Decides how far the learned part may go; another supervisor decides the rest."""

    def __init__(
        self,
        spec: ControlSpec,
        inner: AbstractSupervisor,
        settings: BaseSettings | None = None,
        *,
        gate_authority: float | None = None,
    ) -> None:
        """`gate_authority` is the share of a machine's command range for base and learned part together.

        By default all of it: the base is what drives the machine today.
        """
        self.spec, self.inner, self.settings = spec, inner, settings or BaseSettings()
        self.gate_authority = 1.0 if gate_authority is None else gate_authority
        self.state = BaseState(self.settings.first_authority)
        self._good: Controller | None = None

    def decide(self, candidate: Candidate, meanwhile: Meanwhile) -> Decision:
        """The inner supervisor's choice, or the last good policy, with the authority that was earned."""
        decision = self.inner.decide(candidate, meanwhile)
        if decision.authority is not None:
            decision = decision._replace(authority=self.gate_authority)
        # What the base does by itself is known only from an episode of its own.
        alone = bool(self.state.go_back) and not math.isfinite(self.state.base_error)
        authority = 0.0 if alone else self.state.authority
        if self.state.go_back and not candidate.chosen_by_operator:
            then = "the base alone once more" if alone else f"back to the policy of episode {self.state.good_episode}"
            policy = decision.policy if self._good is None else on_base_of(self._good, decision.policy.policy)
            decision = decision._replace(
                policy=policy,
                prediction_holds=False,
                reason=f"{self.state.go_back}: {then}, with an authority of {100 * authority:.0f} % over the base",
            )
        limit = error_limit(self.settings, self.state.base_peak)
        decision = decision._replace(policy=with_authority(decision.policy, authority, limit))
        if not math.isfinite(self.state.base_error) or candidate.chosen_by_operator:
            return decision
        # A task without a reference has no error to be asked for in mid-episode.
        follows = math.isfinite(self.state.base_peak)
        shares = self.settings.trials if follows else (self.settings.trials[self.state.trial],)
        whole = shares[-1] == 1.0
        if whole and not follows:
            return decision
        return decision._replace(
            shares=shares,
            tolerated=tuple(tolerance(self.settings, s) * self.state.base_error for s in shares) if follows else (),
            alone=with_authority(decision.policy, 0.0, limit),
            # What the model has predicted is for a whole episode of the policy.
            prediction_holds=decision.prediction_holds and whole,
        )

    def judge(self, summary: EpisodeSummary, policy: Controller) -> None:
        """Judge what came out, here and inside."""
        self.inner.judge(summary, policy)
        self.state = judge_with_base(self.state, self.settings, summary.metrics)
        if self.state.good_episode == summary.episode:
            self._good = policy

    def resume(self, recorder: AbstractRecorder, episode: int, robot: AbstractRobot, name: str) -> list[str]:
        """The same state again, from the metrics."""
        for row in recorder.metrics()[:episode]:
            self.state = judge_with_base(self.state, self.settings, row)
        if self.state.good_episode:
            self._good = recorder.load_policy(self.state.good_episode, self.spec)
        return self.inner.resume(recorder, episode, robot, name)


def error_limit(settings: BaseSettings, base_peak: float) -> float:
    """The error at which the learned part fades out, from the largest that the base has had; none where that is NaN."""
    return max(settings.limit * base_peak, 1e-6) if math.isfinite(base_peak) else NO_LIMIT


def with_authority(controller: Controller, authority: float, error_limit: float) -> Controller:
    """The same controller with this authority of its learned part; without a base as it is."""
    if controller.policy.control is None:
        return controller
    values = (jnp.asarray(authority, jnp.float32), jnp.asarray(error_limit, jnp.float32))

    def where(c: Any) -> Any:
        return c.policy.control.authority, c.policy.control.error_limit

    return eqx.tree_at(where, controller, values)


def base_metrics(
    spec: ControlSpec,
    policy: Controller,
    record: EpisodeRecord,
    tried: int | None = None,
    sound: Bool[np.ndarray, "trajectories steps"] | None = None,
) -> dict[str, float]:
    """Of an episode on top of a base: authority, largest recent error, share of steps of the base alone.

    Where the learned part acted in the first `tried` trajectories only, of these; and the errors of both parts, over
    the `sound` steps: a spike of a sensor is not a tracking error.
    """
    control = policy.policy.control
    if control is None:
        return {}
    limit, more = float(control.error_limit), {}
    if tried is not None and tried < len(record.commands):
        counted = dataclasses.replace(record, truth=None, valid=record.valid if sound is None else sound)
        halves = (slice(tried), slice(tried, None))
        errors = [tracking_metrics(spec, (counted.part(half),)).mean_error for half in halves]
        more = {"learned_share": tried / len(record.commands), "tried_error": errors[0], "alone_error": errors[1]}
        more["alone_window_error"] = _watch(spec, record.part(halves[1]), math.inf)[0]
        record = record.part(halves[0])
    largest, alone = _watch(spec, record, limit)
    return {
        "learned_authority": float(control.authority),
        "largest_window_error": largest,
        "base_share": alone,
        **more,
    }


def _watch(spec: ControlSpec, record: EpisodeRecord, limit: float) -> tuple[float, float]:
    """The largest recent error as the controller sees it, and the share of steps in which its trust was lost."""
    steps = record.commands.shape[1]
    found = tracked_output(spec, record.measured[:, :steps])
    error = np.asarray(output_error(spec, record.references[:, :steps], found))
    squares = np.sum((error / np.asarray(spec.scales.error)) ** 2, axis=-1)
    keep = window_share(spec)
    largest, alone, level, trust = 0.0, 0.0, 0.0, 1.0
    for i, (trajectory, valid) in enumerate(zip(squares, record.valid, strict=True)):
        if record.memory is not None:  # a motion that begins anew, as after a reset, trusts the learned part again
            level, trust = (float(part) for part in record.memory[i, -2:])
        for square in trajectory[valid]:
            if math.isfinite(square):
                level += keep * (float(square) - level)
            if level > limit**2 or trust < 1:
                trust = max(trust - spec.period_s / FADE_S, 0.0)
            largest, alone = max(largest, level), alone + (trust == 0.0)
    return math.sqrt(largest), alone / max(int(record.valid.sum()), 1)
