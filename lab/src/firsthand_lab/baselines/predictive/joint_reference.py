"""The reference of the controlled outputs, from what a policy sees of the tip's.

Where outputs are measured, their reference is given. Where kinematics stand between, the positions' reference begins
where the positions are when a trajectory begins, and follows the tip's by a damped pseudo-inverse, weighted by how fast
each joint moved in the recording. What that leaves free draws the joints to the middle of their ranges.
"""

import numpy as np
from jaxtyping import Float

from firsthand_onboard import ControlSpec, SelectedOutput
from firsthand_onboard.kinematics import output_error, output_of_positions

CENTERING_S = 4.0
"""Time constant of the pull to the middle, in seconds."""
DAMPING = 1e-4
"""Of the pseudo-inverse, relative to the mean eigenvalue of J W Jᵀ."""
MARGIN = 0.02
"""The reference keeps this share of the range away from the limits."""
STEP = 1e-5
"""Of central differences, in the unit of positions."""


class JointReference:
    """Of one robot; it remembers where the positions should be now."""

    def __init__(self, spec: ControlSpec, horizon: int, speeds: Float[np.ndarray, " outputs"]) -> None:
        self.spec, self.horizon = spec, horizon
        self.is_measured = isinstance(spec.kinematics, SelectedOutput)
        self.knots = np.asarray([0, *spec.preview], float)
        self.ahead = np.minimum(np.arange(1, horizon + 1), self.knots[-1])
        low, high = np.asarray(spec.limits.position_low), np.asarray(spec.limits.position_high)
        self.middle, margin = (low + high) / 2, MARGIN * (high - low)
        self.low, self.high = low + margin, high - margin
        self.weights = np.asarray(speeds, float) ** 2 / max(float(np.max(speeds)) ** 2, 1e-12)
        self.weights = np.maximum(self.weights, 1e-4)
        self.position: np.ndarray = self.middle

    def begin(self, measured: Float[np.ndarray, " measured"]) -> None:
        """A trajectory begins here."""
        if not self.is_measured:
            self.position = np.clip(measured[list(self.spec.layout.position)], self.low, self.high)

    def __call__(self, points: Float[np.ndarray, "knots outputs"]) -> Float[np.ndarray, "horizon controlled"]:
        """The outputs' reference at each step of the horizon; `points` are the tip's, now and at the preview."""
        if self.is_measured:
            rows = points
        else:
            self.position = self._towards(self.position, points[0], self.spec.period_s, twice=True)
            rows, between = [self.position], np.diff(self.knots) * self.spec.period_s
            for point, time_s in zip(points[1:], between, strict=True):
                rows.append(self._towards(rows[-1], point, time_s))
            rows = np.stack(rows)
        return np.stack([np.interp(self.ahead, self.knots, column) for column in rows.T], axis=1)

    def _towards(self, position: np.ndarray, point: np.ndarray, time_s: float, *, twice: bool = False) -> np.ndarray:
        """A position that has its tip at the point, a little nearer to the middle."""
        pull = (self.middle - position) * min(time_s / CENTERING_S, 1.0)
        for _ in range(2 if twice else 1):
            jacobian, tip = self._jacobian(position)
            weighted = jacobian * self.weights
            gram = weighted @ jacobian.T
            gram = gram + DAMPING * np.trace(gram) / len(gram) * np.eye(len(gram))
            missing = np.asarray(output_error(self.spec, point, tip)) - jacobian @ pull
            position = position + pull + weighted.T @ np.linalg.solve(gram, missing)
            position = np.clip(position, self.low, self.high)
            pull = np.zeros_like(pull)
        return position

    def _jacobian(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = len(position)
        shifts = STEP * np.eye(size)
        rows = np.concatenate([position + shifts, position - shifts, position[None]])
        tips = np.asarray(output_of_positions(self.spec.kinematics, rows))
        difference = np.stack([output_error(self.spec, a, b) for a, b in zip(tips[:size], tips[size:-1], strict=True)])
        return difference.T / (2 * STEP), tips[-1]


def output_weights(spec: ControlSpec, outputs: int, places: Float[np.ndarray, "places positions"], scale: np.ndarray):
    """What a squared error of each output costs: as much as the tip's error that it leads to, on average over places.

    `scale` is the length (one per tracked output, or one for all) of which an error costs 1.
    """
    scale = np.broadcast_to(np.asarray(scale, float), (spec.num_outputs,))
    if isinstance(spec.kinematics, SelectedOutput):
        return 1.0 / scale**2
    reference = JointReference(spec, 1, np.ones(outputs))
    jacobians = [reference._jacobian(place)[0] for place in places]
    return np.mean([np.sum((j / scale[:, None]) ** 2, axis=0) for j in jacobians], axis=0)
