"""What a guard knows after some episodes: usual errors, the last good policy, and the authority that was earned."""

import dataclasses
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..robots.onboard import FIRST_AUTHORITY
from .forecast import Forecast
from .recorder import MIN_VALID_SHARE, measured_score

USUAL_EPISODES = 5
"""A new episode's error is compared with the median of this many good episodes."""


@dataclass(frozen=True)
class GuardSettings:
    """How much a policy may change at once, and when it is taken back."""

    policy_change: float = 0.5
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
        for name, bound in (("policy_change", 0.0), ("error_factor", 1.0), ("worse", 2.0), ("widen", 1.0)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > bound):
                raise UserError(f"{name} is {value}, but must be above {bound:g}.")
        if not 0 < self.first_authority <= 1:
            raise UserError(f"authority is {self.authority}, but must be above 0 and at most 1.")
        if not self.proven > 0:
            raise UserError(f"proven is {self.proven}, but must be above 0.")

    @property
    def first_authority(self) -> float:
        """Share of the command range on a machine of which nothing is known."""
        return FIRST_AUTHORITY if self.authority is None else self.authority

    def allow(self, forecast: Forecast) -> bool:
        """Whether a policy with this forecast may run."""
        small = forecast.policy_change <= self.policy_change
        return small and forecast.error <= self.error_factor * forecast.measured_error


@dataclass(frozen=True)
class GuardState:
    """The guard's state after some episodes; a function of their metrics."""

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


def judge_episode(
    state: GuardState, settings: GuardSettings, episode: int, error: float, predicted: float, valid_share: float = 1.0
) -> GuardState:
    """After an episode with this tracking error, and this error of the model's predictions for it.

    `valid_share` is the share of its steps that were measured soundly. Where that is little, or an error is not finite,
    the episode proves nothing: limits do not widen, and its policy does not count as good. Any other episode after a
    return counts as good whatever comes: if the proven policy is as bad, the machine has changed.
    """
    authority, measured_well = state.authority, valid_share > MIN_VALID_SHARE
    # In the first episode there is no model yet.
    if episode > 1 and measured_well and math.isfinite(predicted) and predicted < settings.proven:
        authority = min(1.0, authority * settings.widen)
    usual = statistics.median(state.errors) if state.errors else math.inf
    if not error <= settings.worse * usual and not state.go_back:
        excess = error / usual if usual > 0 else math.inf
        return dataclasses.replace(state, authority=authority, go_back=True, excess=excess)
    if not (measured_well and math.isfinite(error)):
        return dataclasses.replace(state, authority=authority)
    errors = (error,) if state.go_back else (*state.errors, error)[-USUAL_EPISODES:]
    return GuardState(authority, errors, episode)


def judge_metrics(state: GuardState, settings: GuardSettings, metrics: Mapping[str, Any]) -> GuardState:
    """The same from a line of metrics.jsonl, where NaN is null."""
    predicted = math.nan if metrics["prediction_error"] is None else float(metrics["prediction_error"])
    error = measured_score(metrics)
    valid_share = float(metrics.get("valid_share", 1.0))
    return judge_episode(state, settings, int(metrics["episode"]), error, predicted, valid_share)
