"""Piecewise-constant curvature: from six bends to points on the arm, and back.

A segment's bend is a vector (a, b): it turns the segment's end by θ = √(a² + b²) towards the direction (a, b). With
s = θ², the end lies at length · (a g(s), b g(s), f(s)) in the frame of the segment's foot, f = sin θ/θ and
g = (1 − cos θ)/θ². Both are power series in s, summed up to s = 10 in full float32 precision: no square root, so that
values and derivatives of any order are finite when the arm is straight.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from firsthand.plants.soft_arm.parameters import SEGMENTS

TERMS = 8
SINC = tuple((-1.0) ** k / math.factorial(2 * k + 1) for k in range(TERMS))
"""Coefficients of f = sin θ/θ in powers of s = θ²."""
COSC = tuple((-1.0) ** k / math.factorial(2 * k + 2) for k in range(TERMS))
"""Coefficients of g = (1 − cos θ)/θ²."""
LAGC = tuple((-1.0) ** k / math.factorial(2 * k + 3) for k in range(TERMS))
"""Coefficients of h = (1 − f)/s = (θ − sin θ)/θ³."""


def _slope(coefficients: tuple[float, ...]) -> tuple[float, ...]:
    """Coefficients of twice the derivative with respect to s: 2 df/ds · a is ∂f/∂a."""
    return (*(2.0 * k * c for k, c in enumerate(coefficients) if k > 0), 0.0)


def series(coefficients: np.ndarray, s: Float[Array, " arcs"]) -> Float[Array, "functions arcs"]:
    """Σ coefficients[:, k] sᵏ by Horner's rule, one row per function."""
    columns = np.asarray(coefficients)[:, :, None]
    total = jnp.asarray(columns[:, -1]) + jnp.zeros_like(s)
    for k in range(columns.shape[1] - 2, -1, -1):
        total = total * s + columns[:, k]
    return total


PLACE = np.asarray([SINC, COSC])
MOTION = np.asarray([SINC, COSC, LAGC, _slope(SINC), _slope(COSC)])


def _arc(a: Array, b: Array, f: Array, g: Array) -> tuple[Array, Array]:
    """Ends of arcs of length 1, `(arcs, 3)`, and how they are turned, `(arcs, 3, 3)`, in the frames of their feet."""
    x, y, xy = a * a * g, b * b * g, -a * b * g
    turn = jnp.stack([1 - x, xy, a * f, xy, 1 - y, b * f, -a * f, -b * f, 1 - x - y], axis=1)
    return jnp.stack([a * g, b * g, f], axis=1), turn.reshape(-1, 3, 3)


def arcs(bends: Float[Array, "arcs 2"]) -> tuple[Float[Array, "arcs 3"], Float[Array, "arcs 3 3"]]:
    """Where arcs of length 1 end, and how their ends are turned, each in the frame of its foot."""
    a, b = bends[:, 0], bends[:, 1]
    return _arc(a, b, *series(PLACE, a * a + b * b))


def _rotate(frame: Float[Array, "3 3"], columns: Float[Array, "3 n"]) -> Float[Array, "3 n"]:
    """frame @ columns, written so that it fuses with its neighbours: these matrices are too small for a call."""
    return jnp.sum(frame[:, :, None] * columns[None], axis=1)


def points(bends: Float[Array, "6"], length: float) -> Float[Array, "6 3"]:
    """Middle and end of the first, second and third segment, in metres; z is up."""
    pairs = bends.reshape(SEGMENTS, 2)
    place, turn = arcs(jnp.concatenate([pairs / 2, pairs]))
    # Columns: middle, end, and the three axes at the end, each in the frame of the segment's foot.
    ways = jnp.concatenate([0.5 * place[:3, :, None], place[3:, :, None], turn[3:]], axis=2)
    second = _rotate(turn[3], ways[1])
    third = _rotate(second[:, 2:], ways[2, :, :2])
    first_end = ways[0, :, 1:2]
    found = [ways[0, :, :2], first_end + second[:, :2], first_end + second[:, 1:2] + third]
    return length * jnp.concatenate(found, axis=1).T


def segment_ends(bends: Float[Array, "6"], length: float) -> Float[Array, "3 3"]:
    """The ends of the three segments, the tip last."""
    return points(bends, length)[1::2]


def marked_points(
    bends: Float[Array, "6"], length: float, offsets: tuple[tuple[float, float], ...]
) -> Float[Array, "3 3"]:
    """Where the markers are that sit beside the segment ends by `offsets`, across each end plate, m."""
    place, turn = arcs(bends.reshape(SEGMENTS, 2))
    foot, frame, found = jnp.zeros(3, bends.dtype), jnp.eye(3, dtype=bends.dtype), []
    for j, (across, along) in enumerate(offsets):
        foot, frame = foot + length * (frame @ place[j]), frame @ turn[j]
        found.append(foot + across * frame[:, 0] + along * frame[:, 1])
    return jnp.stack(found)


def bends_of_ends(ends: Float[Array, "3 3"]) -> Float[Array, "6"]:
    """The bends whose segment ends lie in the direction of these, each seen from the end before it."""
    foot, frame = jnp.zeros(3, ends.dtype), jnp.eye(3, dtype=ends.dtype)
    bends = []
    for end in ends:
        way = frame.T @ (end - foot)
        aside = jnp.sqrt(way[0] ** 2 + way[1] ** 2 + 1e-12)
        bend = way[:2] * (2 * jnp.arctan2(aside, way[2]) / aside)
        bends.append(bend)
        foot, frame = end, frame @ arcs(bend[None])[1][0]
    return jnp.concatenate(bends)


class Motion(NamedTuple):
    """How the six `points` move with the bends, each seen in the frame of its segment's foot."""

    jacobian: Float[Array, "6 3 6"]
    """∂point/∂bends, m/rad."""
    up: Float[Array, "6 3"]
    """Which way is up in these frames."""


def motion(bends: Float[Array, "6"], length: float) -> Motion:
    """The Jacobians of `points`, outward from segment to segment.

    A segment's foot moves with velocity v and turns with ω per unit of each bend below it, so a point at e moves with
    v + ω × e, and the next foot with Rᵀ(v + ω × end) and Rᵀω, plus what the segment's own bend does.
    """
    pairs = bends.reshape(SEGMENTS, 2)
    both = jnp.concatenate([pairs / 2, pairs])
    a, b = both[:, 0], both[:, 1]
    f, g, h, df, dg = series(MOTION, a * a + b * b)
    place, turn = _arc(a, b, f, g)
    own = jnp.stack([g + a * a * dg, a * b * dg, a * b * dg, g + b * b * dg, a * df, b * df], axis=1).reshape(-1, 3, 2)
    # Halves have half the length and half the bend.
    place = length * place * _HALVES[:, None]
    own = length * own * (_HALVES**2)[:, None, None]
    # Body rates of the end per own bend: the right Jacobian of the rotation by (-b, a, 0).
    a, b, g, h, turn = a[3:], b[3:], g[3:], h[3:], turn[3:]
    spin = jnp.stack([-a * b * h, a * a * h - 1, 1 - b * b * h, a * b * h, b * g, -a * g], axis=1).reshape(-1, 3, 2)

    velocity, rate = jnp.zeros((3, 0), bends.dtype), jnp.zeros((3, 0), bends.dtype)
    up = jnp.asarray([0.0, 0.0, 1.0], bends.dtype)
    jacobians, ups = [], []
    for j in range(SEGMENTS):
        rest = jnp.zeros((3, 4 - 2 * j), bends.dtype)
        middle = jnp.concatenate([velocity + _cross(rate, place[j]), own[j], rest], axis=1)
        moved = jnp.concatenate([velocity + _cross(rate, place[3 + j]), own[3 + j]], axis=1)
        jacobians += [middle, jnp.concatenate([moved, rest], axis=1)]
        ups += [up, up]
        back = turn[j].T
        velocity, up = _rotate(back, moved), _rotate(back, up[:, None])[:, 0]
        rate = jnp.concatenate([_rotate(back, rate), spin[j]], axis=1)
    return Motion(jnp.stack(jacobians), jnp.stack(ups))


_HALVES = np.asarray([0.5] * SEGMENTS + [1.0] * SEGMENTS)


def _cross(rates: Float[Array, "3 n"], place: Float[Array, "3"]) -> Float[Array, "3 n"]:
    """Each column of `rates` × `place`."""
    (p, q, r), (x, y, z) = rates, place
    return jnp.stack([q * z - r * y, r * x - p * z, p * y - q * x])


def straight(length: float) -> tuple[float, ...]:
    """The nine coordinates of the segment ends of the arm that stands upright."""
    return tuple(np.outer(np.arange(1, SEGMENTS + 1), (0.0, 0.0, length)).ravel().tolist())
