"""Plain advice from the metrics of a run, by fixed rules: for the live page, the report and the terminal. No JAX.

Each rule looks at medians over the newest episodes and can come out either way; `docs/metrics.md` lists them. Metrics
that a run does not have, or that are not finite, make a rule silent.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

RECENT = 5
"""Rules look at the median of this many of the newest episodes."""
MIN_RECENT = 3
"""Fewer values say nothing."""
PROGRESS = 10
"""Episodes of either half in which progress is looked for."""
EPISODES_NEEDED = 2 * PROGRESS
"""Lines of metrics.jsonl that advice can depend on, the newest ones."""

LATE_PERIODS = 0.5
OVERFITTING = 2.5
"""Error of forecasts of new episodes over that of data learned from."""
OVERFITTING_LOSS = 5.0
"""Loss on a new episode over that on the data learned from. Losses are squares where errors are small."""
PREDICTS_WELL = 1.5
MIN_FORECAST_ERROR = 0.05
"""Forecasts with errors below this share of the motion are good enough, whatever they were on other data."""
NOISY = 0.1
"""Share of a step's change that cannot be predicted, from which on an observer is considered (`model.noise_share`)."""
LASTING = 0.7
FOLLOWS_NOISE = -0.4
"""Autocorrelations of innovations."""
UNSTABLE = 1.01
"""Growth of a deviation per step."""
UNUSUAL = 3.0
"""Innovations of a channel over their usual size."""
NO_PROGRESS = 0.95
"""Median error of the newest `PROGRESS` episodes over that of those before."""
CHATTERS = 0.2
"""Share of steps at which commands reverse a large change."""
RESTARTS = 5
"""Restarts of the observer per episode."""
LOST = 0.9
"""Share of steps whose measurements can be believed."""


class Advice(NamedTuple):
    """One finding."""

    rule: str
    """Which rule it is from."""
    text: str
    """A sentence or two for people."""
    urgent: bool
    """Whether somebody should do something about it; otherwise it is good to know."""


def advise(lines: Sequence[Mapping[str, Any]]) -> list[Advice]:
    """What the newest lines of metrics.jsonl suggest, urgent first; `EPISODES_NEEDED` of them are enough."""
    rules = (
        _lost_measurements,
        _refused,
        _unstable,
        _forecasts,
        _unusual_channel,
        _coloured,
        _swapped_velocities,
        _late_velocities,
        _noise,
        _restarts,
        _chatter,
        _progress,
    )
    found = [advice for rule in rules if (advice := rule(lines)) is not None]
    return sorted(found, key=lambda advice: not advice.urgent)


def no_advice(episodes: int) -> str:
    """The text in the place of advice, after this many episodes."""
    return "Nothing stands out." if episodes >= MIN_RECENT else f"Advice begins with episode {MIN_RECENT}."


# Reading lines.


def _values(lines: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    found = [line.get(name) for line in lines]
    return [float(value) for value in found if isinstance(value, int | float) and math.isfinite(value)]


def _lately(lines: Sequence[Mapping[str, Any]], name: str) -> float:
    """The median over the newest episodes; NaN, which no comparison is true of, where too few have a value."""
    values = _values(lines[-RECENT:], name)
    return median(values) if len(values) >= MIN_RECENT else math.nan


def _before(lines: Sequence[Mapping[str, Any]], name: str) -> float:
    """The median over as many episodes before the newest ones."""
    values = _values(lines[-2 * RECENT : -RECENT], name)
    return median(values) if len(values) >= MIN_RECENT else math.nan


def _held_out_ratio(lines: Sequence[Mapping[str, Any]]) -> float:
    """The median of the loss on a new episode over the same model's on its data, which is in the line before."""
    newest, found = lines[-RECENT - 1 :], []
    for before, line in itertools.pairwise(newest):
        held_out, learned = _values([line], "held_out_loss"), _values([before], "model_loss")
        if held_out and learned and learned[0] > 0 and before.get("observer") == line.get("observer"):
            found.append(held_out[0] / learned[0])
    return median(found) if len(found) >= MIN_RECENT else math.nan


def _most_frequent(lines: Sequence[Mapping[str, Any]], name: str) -> str:
    """The text that most of the newest episodes have; empty where there is none."""
    texts = [text for line in lines[-RECENT:] if isinstance(text := line.get(name), str) and text]
    return max(texts, key=texts.count) if texts else ""


def _observer(lines: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether the observer is in use; None where the settings have none."""
    found = lines[-1].get("observer") if lines else None
    return found if isinstance(found, bool) else None


# The rules.


def _lost_measurements(lines: Sequence[Mapping[str, Any]]) -> Advice | None:
    share = _lately(lines, "valid_share")
    if not share < LOST:
        return None
    text = (
        f"{100 * (1 - share):.0f} % of the steps were lost or cannot be believed: a sensor drops out, sticks or "
        "spikes, or trajectories are cut short."
    )
    return Advice("lost measurements", text, True)


def _refused(lines: Sequence[Mapping[str, Any]]) -> Advice | None:
    newest = lines[-MIN_RECENT:]
    steps = _values(newest, "steps_taken")
    refused = [line for line in newest if line.get("update_accepted") is False]
    if len(newest) < MIN_RECENT or not (len(refused) >= 2 or (len(steps) == MIN_RECENT and max(steps) == 0)):
        return None
    why = "updates were refused" if len(refused) >= 2 else "no policy step lowered the predicted cost"
    text = f"The learner has stopped learning: in the newest episodes {why}. Return to an earlier policy or checkpoint."
    return Advice("stopped", text, True)


def _unstable(lines: Sequence[Mapping[str, Any]]) -> Advice | None:
    growth = _lately(lines, "closed_loop_growth")
    if not growth > UNSTABLE:
        return None
    text = (
        f"The model believes the closed loop unstable: a deviation doubles every {math.log(2) / math.log(growth):.0f} "
        "steps. If this lasts: a smaller trust_region.max_radius, or slower references."
    )
    return Advice("unstable", text, True)


def _forecasts(lines: Sequence[Mapping[str, Any]]) -> Advice | None:
    ratio, error = _lately(lines, "forecast_error_ratio"), _lately(lines, "forecast_error")
    loss = _held_out_ratio(lines)
    if not ((ratio > OVERFITTING or loss > OVERFITTING_LOSS) and error > MIN_FORECAST_ERROR):
        return None
    if not ratio > OVERFITTING:
        seen = f"its loss on new episodes is {loss:.1f} times that on the data it learned from"
    else:
        seen = f"forecasts of new episodes err {ratio:.1f} times as much as those of the data it learned from"
    if ratio > OVERFITTING and _before(lines, "forecast_error_ratio") < PREDICTS_WELL:
        channel = _most_frequent(lines, "innovation_size_channel")
        where = f", most in {channel}" if channel else ""
        text = (
            f"The machine or its sensors have changed: {seen}{where}. Some more episodes teach the model the new one."
        )
        return Advice("changed", text, True)
    text = (
        f"The model overfits: {seen}. Less excitation noise, fewer model.steps, or more data (longer episodes, logs)."
    )
    return Advice("overfitting", text, True)


def _unusual_channel(lines: Sequence[Mapping[str, Any]]) -> Advice | None:
    size, ratio = _lately(lines, "innovation_size"), _lately(lines, "one_step_error_ratio")
    channel = _most_frequent(lines, "innovation_size_channel")
    if not (size > UNUSUAL and ratio < 0.5 * size and channel):
        return None
    text = f"{channel} is {size:.1f} times as far from its prediction as it used to be, others less: check that sensor."
    return Advice("sensor", text, True)


def _coloured(lines: Sequence[Mapping[str, Any]]) -> Advice | None:
    correlation, error = _lately(lines, "innovation_correlation"), _lately(lines, "forecast_error")
    channel = _most_frequent(lines, "innovation_correlation_channel")
    if correlation > LASTING and error > MIN_FORECAST_ERROR:
        text = (
            f"Prediction errors of {channel} last from step to step (correlation {correlation:.1f}). In the first "
            "episodes that is normal. Later, something slow is missing from the state: longer measurement or command "
            "memory may help."
        )
        return Advice("lasting errors", text, False)
    if correlation < FOLLOWS_NOISE and _observer(lines):
        text = f"The observer follows the noise of {channel} (correlation of innovations {correlation:.1f})."
        return Advice("follows noise", text, False)
    return None


def _swapped_velocities(lines: Sequence[Mapping[str, Any]]) -> Advice | None:
    found = _most_frequent(lines, "swapped_velocities")
    seen = sum(line.get("swapped_velocities") == found for line in lines[-RECENT:])
    if " follows " not in found or seen < MIN_RECENT:
        return None
    return Advice("swapped velocities", f"Correct `velocities` in the task: {found}.", True)


def _late_velocities(lines: Sequence[Mapping[str, Any]]) -> Advice | None:
    delay, names = _lately(lines, "velocity_delay"), _most_frequent(lines, "late_velocities")
    if not (delay >= LATE_PERIODS and names):
        return None
    periods = "half a period" if delay < 0.75 else "one period" if delay < 1.5 else f"{delay:.0f} periods"
    learned, observer = _lately(lines, "observer_delay"), _observer(lines)
    if observer and learned >= 0.5 * delay:
        then = "learned by the observer"
    elif observer:
        then = "the observer has not learned that yet"
    elif observer is None:
        then = "the policy sees them so (observer.use 1 would let an observer learn it)"
    else:
        then = "the model has learned them as they are; no observer is in use"
    return Advice("late velocities", f"Velocities of {names} arrive about {periods} late; {then}.", False)


def _noise(lines: Sequence[Mapping[str, Any]]) -> Advice | None:
    share, ratio, observer = _lately(lines, "noise_share"), _lately(lines, "observer_error_ratio"), _observer(lines)
    if not share >= NOISY or observer is None:
        return None
    compared = f"its forecasts err {ratio:.2f} times as much as without it"
    state = f"the observer is in use ({compared})" if observer else f"the observer does not pay here ({compared})"
    text = f"Sensors are noisy ({100 * share:.0f} % of a step's change cannot be predicted): {state}."
    return Advice("noise", text, False)


def _restarts(lines: Sequence[Mapping[str, Any]]) -> Advice | None:
    restarts = _lately(lines, "observer_restarts")
    if not restarts > RESTARTS:
        return None
    text = (
        f"The observer lost the machine {restarts:.0f} times per episode and began again from measurements: a sensor "
        "jumps, or the model is wrong somewhere. If this lasts: observer.use 0."
    )
    return Advice("restarts", text, True)


def _chatter(lines: Sequence[Mapping[str, Any]]) -> Advice | None:
    share = _lately(lines, "chatter")
    if not share > CHATTERS:
        return None
    text = (
        f"Commands chatter: {100 * share:.0f} % of them reverse a change of more than a tenth of their range. Valves "
        "and gears wear; raise the cost of changes (change_weight of the task)."
    )
    return Advice("chatter", text, True)


def _progress(lines: Sequence[Mapping[str, Any]]) -> Advice | None:
    name = "score" if lines and "score" in lines[-1] else "tracking_error"
    newest, earlier = _values(lines[-PROGRESS:], name), _values(lines[-2 * PROGRESS : -PROGRESS], name)
    if min(len(newest), len(earlier)) < PROGRESS - 2 or not median(newest) > NO_PROGRESS * median(earlier):
        return None
    share = median(newest) / median(earlier)
    seen = (
        f"has risen to {share:.1f} times what it was" if share > 1 / NO_PROGRESS else "has not fallen"
    ) + f" over the last {PROGRESS} episodes"
    ratio = _lately(lines, "forecast_error_ratio")
    if ratio < PREDICTS_WELL:
        text = (
            f"The model predicts new episodes well, but the policy does not improve: the error {seen}. It may be as "
            "good as robot and references allow (firsthand evaluate --oracle, if simulated), or stuck: try another "
            "seed."
        )
    else:
        text = f"The error {seen}: learning has stopped."
    return Advice("no progress", text, share > 1 / NO_PROGRESS)
