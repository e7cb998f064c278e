"""Evaluation paths in the plane, travelled with smooth starts, stops and corners."""

import itertools
import math

import numpy as np

from firsthand_onboard.features import quintic_blend

RAMP_S = 1.0
"""How long it takes at least to reach the cruising speed, and to stop again, in seconds."""
RAMP_STEPS = 10
"""The same in control periods: a slow process has few of them in a second."""


def travelled_distance(length: float, speed: float, period_s: float) -> np.ndarray:
    """Distance covered at each control step from rest to rest over `length`, cruising at `speed`.

    The speed rises and falls along a quintic blend, so the acceleration is continuous. A short way is travelled at a
    lower peak.
    """
    ramp_s = max(RAMP_S, RAMP_STEPS * period_s)
    speed = min(speed, length / ramp_s)
    duration = length / speed + ramp_s
    # Fine integration of the speed profile, then one correction so that the end is met exactly.
    fine = np.linspace(0.0, duration, max(int(duration / 1e-3), 2))
    profile = speed * np.minimum(quintic_blend(fine / ramp_s), quintic_blend((duration - fine) / ramp_s))
    distance = np.concatenate([[0.0], np.cumsum((profile[1:] + profile[:-1]) / 2 * np.diff(fine))])
    distance *= length / distance[-1]
    times = np.arange(math.ceil(duration / period_s) + 1) * period_s
    return np.interp(times, fine, distance)


def circle(center: tuple[float, float], radius: float, *, speed: float, period_s: float) -> np.ndarray:
    """Once round, from the far side, counter-clockwise; `(steps, 2)`."""
    angle = travelled_distance(2 * math.pi * radius, speed, period_s) / radius
    return np.stack([center[0] + radius * np.cos(angle), center[1] + radius * np.sin(angle)], axis=1)


def polygon(corners: list[tuple[float, float]], *, speed: float, period_s: float) -> np.ndarray:
    """From corner to corner in straight lines, stopping smoothly at each; `(steps, 2)`."""
    parts = []
    for a, b in itertools.pairwise(corners):
        start, end = np.asarray(a, float), np.asarray(b, float)
        length = float(np.linalg.norm(end - start))
        share = travelled_distance(length, speed, period_s) / length
        parts.append(start + share[:, None] * (end - start))
    return np.concatenate([part if i == 0 else part[1:] for i, part in enumerate(parts)])


def square(center: tuple[float, float], side: float, *, speed: float, period_s: float) -> np.ndarray:
    """Once round from the lower far corner, counter-clockwise."""
    x, z, h = *center, side / 2
    corners = [(x + h, z - h), (x + h, z + h), (x - h, z + h), (x - h, z - h), (x + h, z - h)]
    return polygon(corners, speed=speed, period_s=period_s)


def there_and_back(
    start: tuple[float, float], end: tuple[float, float], *, speed: float, period_s: float
) -> np.ndarray:
    """Along a straight line and back."""
    return polygon([start, end, start], speed=speed, period_s=period_s)
