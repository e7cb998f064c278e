"""When a run has stopped learning: the reason, and what to try next. By fixed rules on lines of metrics.jsonl; no JAX.

`training.loop` ends a run at a standstill, unless it is told to keep going.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

WINDOW = 10
"""Lines of metrics.jsonl that a standstill can depend on, the newest ones."""
MAX_UNCHANGED = 5
"""A policy whose weights are the same, bit for bit, over this many updates has stopped changing."""
MAX_NULL_GRADIENTS = 3
"""Updates in a row without any gradient."""
NULL_GRADIENT = 1e-12
MAX_REFUSED_SHARE = 0.5
"""Share of the newest `WINDOW` updates that may be refused or rolled back."""
NO_EFFECT = 0.01
"""Commands that explain less than this share of what the robot's own motion leaves open have no visible effect."""
NO_PROGRESS = 0.95
"""Median error of the newest half of the window over that of the half before."""
SATURATED = 0.9
"""Share of commands at a limit of their range."""
LOST = 0.5
"""Share of steps that can be learned from."""
AT_LIMITS = 0.5
"""Share of steps with a position at or outside its limits."""


class Standstill(NamedTuple):
    """Why a run no longer learns."""

    reason: str
    """The observation, as a clause."""
    remedy: str
    """The remedy to try next, as a sentence."""

    def __str__(self) -> str:
        return f"Learning has stopped: {self.reason}. {self.remedy}"


def find_standstill(lines: Sequence[Mapping[str, Any]]) -> Standstill | None:
    """The first rule that the newest lines of metrics.jsonl fulfil; None while the policy learns."""
    lines = lines[-WINDOW:]
    for rule in (_null_gradient, _refused, _unchanged, _no_effect):
        reason = rule(lines)
        if reason:
            return Standstill(reason, _remedy(lines, reason))
    return None


def _numbers(lines: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    found = [line.get(name) for line in lines]
    return [float(v) for v in found if isinstance(v, int | float) and math.isfinite(v)]


def _median(lines: Sequence[Mapping[str, Any]], name: str) -> float:
    """NaN, which no comparison is true of, where no line has a value."""
    values = _numbers(lines, name)
    return median(values) if values else math.nan


def _null_gradient(lines: Sequence[Mapping[str, Any]]) -> str:
    newest = lines[-MAX_NULL_GRADIENTS:]
    norms = _numbers(newest, "gradient_norm")
    accepted = all(line.get("update_accepted") is not False for line in newest)
    if len(norms) < MAX_NULL_GRADIENTS or max(norms) > NULL_GRADIENT or not accepted:
        return ""
    return f"the policy's gradient was zero in {len(norms)} updates in a row"


def _refused(lines: Sequence[Mapping[str, Any]]) -> str:
    lost = [line for line in lines if line.get("update_accepted") is False or line.get("rolled_back") is True]
    if len(lines) < WINDOW or len(lost) < MAX_REFUSED_SHARE * WINDOW:
        return ""
    return f"{len(lost)} of the last {WINDOW} updates were refused or taken back"


def _unchanged(lines: Sequence[Mapping[str, Any]]) -> str:
    changes = _numbers(lines[-MAX_UNCHANGED:], "policy_change")
    if len(changes) < MAX_UNCHANGED or max(changes) > 0:
        return ""
    return f"the policy's weights are the same, bit for bit, after {MAX_UNCHANGED} updates"


def _no_effect(lines: Sequence[Mapping[str, Any]]) -> str:
    half = WINDOW // 2
    effects = _numbers(lines[-half:], "command_effect")
    name = "score" if lines and "score" in lines[-1] else "tracking_error"
    newest, before = _median(lines[-half:], name), _median(lines[:-half], name)
    if len(lines) < WINDOW or len(effects) < half or median(effects) > NO_EFFECT or not newest > NO_PROGRESS * before:
        return ""
    return "the error does not fall, and commands have no visible effect on what is measured"


def _remedy(lines: Sequence[Mapping[str, Any]], reason: str) -> str:
    newest = lines[-MAX_UNCHANGED:]
    valid, saturation = _median(newest, "valid_share"), _median(newest, "saturation")
    effect, limits = _median(newest, "command_effect"), _median(newest, "limit_share")
    if valid < LOST:
        return (
            f"Only {100 * valid:.0f} % of the steps can be learned from: motions end early, or sensors fail. Shorter "
            "trajectories (steps), a gentler start (excitation.amplitude, command_low and command_high), or repair the "
            "sensor."
        )
    if saturation > SATURATED:
        return (
            f"{100 * saturation:.0f} % of the commands stand at a limit of their range, where a policy has no "
            "gradient. Slower references (rate), a wider command range, or another --seed."
        )
    if effect < NO_EFFECT:
        return (
            "Check that commands reach the robot, that their range is right, and that command_memory covers its dead "
            "time: firsthand inspect pushes every channel and shows what comes back."
        )
    if limits > AT_LIMITS:
        return (
            f"A position is at or outside its limits in {100 * limits:.0f} % of the steps. Check position_low and "
            "position_high, end motions there (stop_at_limits), or start more gently."
        )
    if "same" in reason:
        return (
            "No step lowers the cost that the model predicts. The policy may be as good as robot and references allow; "
            "otherwise try another --seed, slower references, or shorter trajectories (steps)."
        )
    return (
        "The model's predictions do not come true. Shorter trajectories (steps), slower references (rate), more memory "
        "(command_memory, measurement_memory), or a smaller trust_region.max_radius."
    )
