"""A stream of work: points of a reference that go on arriving while the machine follows them.

The stream is cut into chunks of the usual trajectory length. What a chunk will see, its points and the preview beyond
them, is settled when it begins. Where the points run out, the last one is held: the machine goes there and stands.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .kinematics import tracked_output
from .messages import Refusal
from .spec import ControlSpec

WAIT_CHUNKS = 2
"""A machine that has reached the end of its work stands there, under control, for this many chunks; then it rests."""
MAX_AHEAD = 50_000
"""Points that may wait."""
STOPPED = "the stream of work stopped"


class Stream:
    """The points of a stream that are known, and where the machine is in them."""

    def __init__(self, spec: ControlSpec, points: np.ndarray, measured: np.ndarray) -> None:
        """Raise `Refusal` where the stream does not begin where the machine is."""
        self.spec, self.done, self._waited = spec, 0, 0
        here = np.asarray(tracked_output(spec, measured), float)
        self._points = here[None]
        self._append(points, "begins")
        self._points = self._points[1:]

    @property
    def ahead(self) -> int:
        """Points that are known and not reached yet."""
        return len(self._points)

    def add(self, points: np.ndarray) -> None:
        """Go on with these points; `Refusal` where they jump, or are too many."""
        self._append(points, "jumps at point 0")

    def _append(self, points: np.ndarray, first: str) -> None:
        """`first` is what the refusal says of a jump to the first of these points."""
        points = np.asarray(points, float)
        if points.ndim != 2 or points.shape[1] != self.spec.num_outputs or not np.isfinite(points).all():
            raise Refusal(f"a stream's points have {self.spec.num_outputs} finite numbers each")
        if not len(points):
            raise Refusal("there is no point in the work that was sent")
        if len(self._points) + len(points) > MAX_AHEAD:
            raise Refusal(f"{len(self._points)} points wait already; at most {MAX_AHEAD} may")
        joined = np.concatenate([self._points[-1:], points])
        steps = np.abs(np.diff(joined, axis=0)) / np.broadcast_to(np.asarray(self.spec.scales.error), points.shape)
        if steps.max() > 1.0:
            at = int(np.argmax(steps.max(axis=1)))
            size, most = steps.max() * float(np.max(self.spec.scales.error)), float(np.max(self.spec.scales.error))
            where = f"jumps at point {at}" if at else first
            raise Refusal(f"the stream {where} {size:.2g} away from where it was; at most {most:.2g} per step")
        self._points = np.concatenate([self._points, points])
        self._waited = 0

    def next_chunk(self) -> np.ndarray | None:
        """The points of the next chunk with the preview beyond; None where the machine has waited long enough."""
        steps, beyond = self.spec.reference.steps, self.spec.preview[-1]
        if len(self._points) <= 1:
            self._waited += 1
            if self._waited > WAIT_CHUNKS:
                return None
        chunk = self._points[: steps + beyond]
        self._points = self._points[min(steps, len(self._points) - 1) :]  # the last point is held
        self.done += 1
        held = np.repeat(chunk[-1:], steps + beyond - len(chunk), axis=0)
        return np.concatenate([chunk, held]).astype(np.float32)


def check_points(arrays: Any) -> np.ndarray:
    """The points that a message brings."""
    if set(arrays) != {"reference"}:
        raise Refusal("work comes as one array, `reference`")
    return np.asarray(arrays["reference"])
