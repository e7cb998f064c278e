"""What stands between a new policy and a machine: predicted change, approval, and the way back.

A callback: it looks at the policy before each episode and may put another one in its place; the loop knows nothing of
it. What it remembers follows from the run's metrics, so that it is the same after a resume.
"""

import contextlib
import dataclasses
import math
import os
import select
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from firsthand_onboard.features import measured_part
from firsthand_onboard.kinematics import tracked_output

from ..agent import Rollout
from ..agent.ground import deviation, ground_of, predicted
from ..errors import UserError, suggest
from ..models import Policy
from ..robots import EpisodeRecord
from ..robots.onboard import FIRST_AUTHORITY
from ..runs import atomic
from ..units import METRES, Unit, unit_of
from .callbacks import Callback, EpisodeAbandoned, EpisodeSummary
from .data import as_rollout
from .display import say
from .loop import SEEN, policy_from_arrays

SHARES = (1.0, 0.5, 0.25)
"""How much of a policy's change is tried, one after the other, before the old policy is kept."""
REMEMBERED = 5
"""The median error of so many good episodes is what a new one is compared with."""

Approval = Callable[[str], bool]
"""Shows the operator what is about to run, and says whether it may; `EpisodeAbandoned` where he stops instead."""
WAYS_TO_ASK = ("ask", "page")
"""How approval can be asked for, besides through a file."""


@dataclass(frozen=True)
class GuardSettings:
    """How much a policy may change at once, and when it is taken back."""

    command_change: float = 0.5
    """Largest root mean square change of commands on the last measured states, in half ranges."""
    error_factor: float = 1.5
    """The error that the model predicts for the new policy may be this many times the measured one."""
    worse: float = 3.0
    """An episode whose error is this many times the usual one brings the last good policy back. A payload change
    doubles the error and is no reason to."""
    authority: float | None = None
    """Share of the command range in the first episodes, by default `FIRST_AUTHORITY`; it widens as the model predicts
    what then happens. Where it is given, a resumed run goes on with no more than this."""
    widen: float = 1.5
    """Factor by which it widens after each episode that the model predicted well."""
    proven: float = 0.5
    """The model predicted an episode well when its error there, relative to the usual change, is below this."""

    def __post_init__(self) -> None:
        for name, least in (("command_change", 0.0), ("error_factor", 1.0), ("worse", 2.0), ("widen", 1.0)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > least):
                raise UserError(f"{name} is {value}, but must be above {least:g}.")
        if not 0 < self.first_authority <= 1:
            raise UserError(f"authority is {self.authority}, but must be above 0 and at most 1.")
        if not self.proven > 0:
            raise UserError(f"proven is {self.proven}, but must be above 0.")

    @property
    def first_authority(self) -> float:
        """Share of the command range on a machine of which nothing is known."""
        return FIRST_AUTHORITY if self.authority is None else self.authority


@dataclass(frozen=True)
class GuardState:
    """What the guard knows after some episodes; a function of their metrics."""

    authority: float
    """Share of the command range for the next episode."""
    errors: tuple[float, ...] = ()
    """Tracking errors of the last good episodes."""
    good_episode: int = 0
    """The last good one."""
    go_back: bool = False
    """Whether the next episode runs that one's policy again."""
    excess: float = 0.0
    """How many times the usual error the last episode had, where that brings the good policy back; NaN where nothing
    was measured."""


def judged(
    state: GuardState, settings: GuardSettings, episode: int, error: float, predicted: float, seen: float = 1.0
) -> GuardState:
    """After an episode with this tracking error, and this error of the model's predictions for it.

    `seen` is the share of its steps that were measured soundly. Where that is little, or an error is not finite, the
    episode proves nothing: limits do not widen, and its policy does not count as good. Any other episode after a return
    counts as good whatever comes: if the proven policy is as bad, the machine has changed.
    """
    authority, well_seen = state.authority, seen > SEEN
    # In the first episode there is no model yet.
    if episode > 1 and well_seen and math.isfinite(predicted) and predicted < settings.proven:
        authority = min(1.0, authority * settings.widen)
    usual = statistics.median(state.errors) if state.errors else math.inf
    if not error <= settings.worse * usual and not state.go_back:
        excess = error / usual if usual > 0 else math.inf
        return dataclasses.replace(state, authority=authority, go_back=True, excess=excess)
    if not (well_seen and math.isfinite(error)):
        return dataclasses.replace(state, authority=authority)
    errors = (error,) if state.go_back else (*state.errors, error)[-REMEMBERED:]
    return GuardState(authority, errors, episode)


@dataclass(frozen=True)
class Forecast:
    """What the model says about a policy on the last measured episode."""

    command_change: float
    """Root mean square change of commands against the policy that ran, in half ranges."""
    error: float
    """Predicted mean tracking error."""
    measured_error: float
    """What was measured with the policy that ran."""
    unit: Unit = METRES
    """Of both."""

    def within(self, settings: GuardSettings) -> bool:
        """Whether the policy may run."""
        return (
            self.command_change <= settings.command_change and self.error <= settings.error_factor * self.measured_error
        )

    def __str__(self) -> str:
        return (
            f"commands change by {self.command_change:.2f} of the half range, error {self.unit.with_unit(self.error)} "
            f"predicted after {self.unit.with_unit(self.measured_error)} measured"
        )


@eqx.filter_jit
def _forecast(policy: Policy, ran: Policy, dynamics: Any, rollout: Rollout) -> tuple[Any, Any, Any]:
    on = ground_of(dynamics, rollout, None)
    states, count = rollout.states[:, :-1], on.valid.sum()
    new, old = (jax.vmap(jax.vmap(each))(states, rollout.previews) for each in (policy, ran))

    def error(x):
        """NaN where nothing was measured: then nothing can be predicted either."""
        output = jax.vmap(jax.vmap(lambda s: tracked_output(policy.spec, measured_part(policy.spec.layout, s))))(x)
        distance = jnp.where(on.valid, jnp.linalg.norm(output - rollout.references, axis=-1), 0.0)
        return jnp.where(count > 0, distance.sum() / jnp.maximum(count, 1), jnp.nan)

    change = jnp.where(count > 0, deviation(policy, new, old, on), jnp.nan)
    return change, error(predicted(policy, dynamics, on).states[:, :-1]), error(states)


def forecast(policy: Policy, ran: Policy, dynamics: Any, rollout: Rollout, unit: Unit = METRES) -> Forecast:
    """Predict, on the last measured episode, what a policy does differently from the one that ran."""
    change, error, measured = (float(value) for value in _forecast(policy, ran, dynamics, rollout))
    return Forecast(change, error, measured, unit)


def between(old: Policy, new: Policy, share: float) -> Policy:
    """Weights that have gone `share` of the way from the old policy to the new one."""
    return jax.tree.map(lambda a, b: a + share * (b - a) if eqx.is_inexact_array(a) else a, old, new)


class Guard(Callback):
    """Decides before each episode which policy runs, and within which share of the command range."""

    def __init__(self, settings: GuardSettings, approve: Approval | None = None) -> None:
        self.settings, self.approve = settings, approve
        self.state: GuardState | None = None
        self._ran: Policy | None = None
        self._record: EpisodeRecord | None = None
        self._good: Policy | None = None

    def before_episode(self, trainer: Any, episode: int) -> None:
        """Put the policy that may run in the trainer's state, and the limits in the robot."""
        if self.state is None:
            self._remember(trainer)
        assert self.state is not None
        if self._record is None and self.approve is not None:
            first = f"the first one, nothing measured yet, with {100 * self.state.authority:.0f} % of the command range"
            if not self.approve(first):
                raise UserError("The operator did not approve the first policy; nothing moved.")
        chosen = self._choose(trainer) if self._record is not None else trainer.state.policy
        if chosen is not trainer.state.policy:
            unknown = jnp.full_like(trainer.state.expected_cost, jnp.nan)
            trainer.state = dataclasses.replace(trainer.state, policy=chosen, expected_cost=unknown)
        if trainer.robot.has_authority:
            trainer.robot.authority = self.state.authority
        self._ran = chosen

    def after_episode(self, trainer: Any, summary: EpisodeSummary) -> None:
        """Judge what came out."""
        assert self.state is not None
        self._record = summary.record
        metrics = summary.metrics
        self.state = judged(self.state, self.settings, *_what_counts(metrics))
        if self.state.good_episode == summary.episode:
            self._good = self._ran

    def _choose(self, trainer: Any) -> Policy:
        assert self.state is not None
        assert self._record is not None
        candidate, ran = trainer.state.policy, self._ran
        if candidate is trainer.operators_policy:
            return candidate
        if self.state.go_back and self._good is not None:
            why = f"the last episode's error was {self.state.excess:.1f} times the usual one"
            if math.isnan(self.state.excess):
                why = "nothing of the last episode was measured"
            say(f"{why}: back to the policy of episode {self.state.good_episode}")
            return self._good
        assert ran is not None
        rollout = as_rollout(trainer.task.spec, self._record)
        dynamics, unit = trainer.state.dynamics, unit_of(trainer.task.unit)
        for share in SHARES:
            policy = candidate if share == 1.0 else between(ran, candidate, share)
            predicted = forecast(policy, ran, dynamics, rollout, unit)
            if predicted.within(self.settings):
                if share < 1.0:
                    say(f"the new policy goes only {share:g} of its way: {predicted}")
                return self._if_approved(trainer, policy, ran, str(predicted))
        say(f"the new policy is refused ({forecast(candidate, ran, dynamics, rollout, unit)}); the old one runs again")
        return ran

    def _if_approved(self, trainer: Any, policy: Policy, ran: Policy, text: str) -> Policy:
        if self.approve is None:
            return policy
        approved = self.approve(text)
        if trainer.state.policy is trainer.operators_policy:  # put in place while the question was open
            return trainer.state.policy
        if not approved:
            say("the operator did not approve the new policy; the old one runs again")
            return ran
        return policy

    def _remember(self, trainer: Any) -> None:
        """What earlier sessions of this run knew."""
        self.state = GuardState(self.settings.first_authority)
        if trainer.run is None or trainer.episode == 0:
            return
        self._recall(trainer)
        arrays, _ = trainer.run.load_episode(trainer.episode)
        spec = trainer.task.spec
        self._record, self._ran = EpisodeRecord.from_arrays(arrays), policy_from_arrays(spec, arrays)
        if self.state.good_episode:
            self._good = policy_from_arrays(spec, trainer.run.load_episode(self.state.good_episode)[0])

    def _recall(self, trainer: Any) -> None:
        """The state from the run's metrics; what was earned on one machine does not hold on another."""
        assert self.state is not None
        here, first = trainer.config.robot, self.settings.first_authority
        moved = False
        for row in trainer.run.read_metrics():
            if row["episode"] > trainer.episode:
                continue
            moved = row.get("machine", trainer.run.config.get("robot", here)) != here
            used = row.get("authority", self.state.authority)
            self.state = judged(dataclasses.replace(self.state, authority=used), self.settings, *_what_counts(row))
            if moved:
                self.state = dataclasses.replace(self.state, authority=first)
        earned, given = self.state.authority, self.settings.authority
        if moved and trainer.robot.has_authority:
            say(f"the last episode ran on another machine: this one starts with {100 * first:.0f} % of its range")
        elif given is not None and given > earned:
            say(f"authority is {given:g}, but the run has earned {earned:g} so far and goes on with that")
        if given is not None:
            self.state = dataclasses.replace(self.state, authority=min(earned, given))


def _what_counts(metrics: Mapping[str, Any]) -> tuple[int, float, float, float]:
    """What `judged` needs of a line of metrics.jsonl, where NaN is null."""
    error, predicted = (
        math.nan if metrics[name] is None else float(metrics[name]) for name in ("tracking_error", "prediction_error")
    )
    return int(metrics["episode"]), error, predicted, float(metrics.get("valid_share", 1.0))


def check_way_to_ask(way: str) -> None:
    """Raise `UserError` where approval could not be asked for in this way: before the robot is ready, not then."""
    if way == "ask" and not sys.stdin.isatty():
        raise UserError("approve is 'ask', but there is no terminal to ask in; give a file: --approve FILE.")
    if way in WAYS_TO_ASK:
        return
    if os.sep not in way and "." not in way:
        raise UserError(
            f"approve is {way!r}, but must be ask, page or a file{suggest(way, WAYS_TO_ASK)}; a file in this folder is "
            f"./{way or 'FILE'}."
        )
    path = Path(way)
    if path.is_dir():
        raise UserError(f"approve is {way}, which is a folder; name a file in it.")
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise UserError(f"approve is {way}, but {path.parent} is no folder that can be written to.")


def ask_in_terminal(stopped: Callable[[], bool], *, every_s: float = 0.2) -> Approval:
    """Approval by typing y; the end of the input (Ctrl-D) is a no. Given up when `stopped` says so."""

    def ask(text: str) -> bool:
        say(f"The new policy: {text}.")
        print("Run it on the robot? [y/N] ", end="", flush=True)
        while True:
            typed, _, _ = select.select([sys.stdin], [], [], every_s)
            if stopped():
                raise EpisodeAbandoned
            if typed:
                return sys.stdin.readline().strip().lower() in ("y", "yes")

    return ask


def ask_by_file(path: Path, stopped: Callable[[], bool], *, every_s: float = 0.5) -> Approval:
    """Approval by a file: the question is written to `path`, and the operator writes yes or no to `path`.answer.

    Given up when `stopped` says so.
    """
    answer = path.with_name(path.name + ".answer")

    def ask(text: str) -> bool:
        try:
            answer.unlink(missing_ok=True)
            path.write_text(text + "\n")
        except OSError as error:
            raise UserError(f"cannot ask through {path}: {atomic.cause(error)}.") from None
        say(f"Waiting for yes or no in {answer}: {text}.")
        try:
            while (word := _word_in(answer)) not in ("yes", "no"):
                if stopped():
                    raise EpisodeAbandoned
                time.sleep(every_s)
        finally:
            for file in (path, answer):
                with contextlib.suppress(OSError):
                    file.unlink(missing_ok=True)
        return word == "yes"

    return ask


def _word_in(path: Path) -> str:
    """What somebody has written there, as far as it can be read."""
    try:
        return path.read_text().strip().lower()
    except (OSError, UnicodeDecodeError):
        return ""
