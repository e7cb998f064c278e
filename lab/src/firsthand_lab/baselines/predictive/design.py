"""From recordings of a robot to a law: every setting is chosen on held-out data, the last quarter of what there is."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from firsthand.errors import UserError
from firsthand.robots.base import neutral
from firsthand.tasks import Task
from firsthand_onboard import ControlSpec
from firsthand_onboard.features import command_feature

from .controller import Law
from .deepc import AS_GOOD, LAMBDAS, DeePC, judged_cost
from .deepc import RIDGES as DEEPC_RIDGES
from .input_map import AHEAD, LEAST, PAST, InputMap, choose_map
from .joint_reference import output_weights
from .koopman import RIDGES, SPLINES, UNSTABLE, Koopman
from .prediction import AbstractPredictor
from .recording import Series, Signals, Windows

PASTS = (4, 8, 16, 24)
"""Steps back that are tried, where the recording is long enough for them."""
MIN_HORIZON, MAX_HORIZON = 10, 25
CORRECTIONS = (0.0, 0.01, 0.03, 0.1)
"""Filters of the correction that are tried; see `controller`."""
ROWS_PER_COEFFICIENT = 3
PLACES = 64
"""Of the recording, at which the kinematics are looked at for the outputs' weights."""


class Request:
    """What a predictor is chosen for."""

    def __init__(
        self, series: Series, v: np.ndarray, outputs: int, horizon: int, weights: np.ndarray, change: np.ndarray
    ) -> None:
        self.series, self.v, self.outputs, self.horizon = series, v, outputs, horizon
        self.weights, self.change = weights, change
        """Of squared errors of the scaled outputs, and of squared changes of v."""

    def windows(self, past: int) -> Windows:
        """All windows with that past."""
        return Windows.of(self.series, self.v, self.outputs, past=past, horizon=self.horizon)

    def pasts(self) -> Iterator[tuple[int, Windows, Windows]]:
        """Every past that the recording is long enough for, with windows to learn from and windows held out."""
        found = False
        for past in PASTS:
            windows = self.windows(past)
            rows = past * (self.v.shape[1] + self.series.measured.shape[1]) + self.horizon * self.v.shape[1]
            if len(windows) >= ROWS_PER_COEFFICIENT * rows:
                found = True
                yield past, *windows.split(past + self.horizon)
        if not found:
            raise in_pieces(PASTS[0] + self.horizon)


def in_pieces(steps: int) -> UserError:
    """The message about a recording with too few stretches of this length."""
    return UserError(
        "the robot was stopped or restarted too often while it was excited: there are not enough stretches of "
        f"{steps} steps for a predictor; see: firsthand inspect."
    )


def horizon_of(spec: ControlSpec) -> int:
    """As far as the reference is known."""
    return int(np.clip(spec.preview[-1], MIN_HORIZON, MAX_HORIZON))


def find_map(task: Task, series: Series) -> InputMap:
    """The static map of the commands, from the excitation alone."""
    spec = task.spec
    at_rest = np.asarray(command_feature(spec, np.asarray(neutral(spec), float)))
    outputs = len(Signals.of(spec).outputs)
    if len(Windows.of(series, series.commands, outputs, past=PAST, horizon=AHEAD)) < LEAST:
        raise in_pieces(PAST + AHEAD)
    return choose_map(series, at_rest, outputs)


def make_law(task: Task, series: Series, inputs: InputMap, choose: Callable[[Request], AbstractPredictor]) -> Law:
    """All other settings, from all that was recorded."""
    spec, signals = task.spec, Signals.of(task.spec)
    outputs, v = len(signals.outputs), inputs.forward(series.commands)
    places = _places(signals, series)
    weights = output_weights(spec, outputs, places, _length_scale(task)) * signals.scale[:outputs] ** 2
    change = np.broadcast_to(np.asarray(task.cost.change_weight, float), (v.shape[1],)).copy()
    together = series.valid[1:] & series.valid[:-1]
    request = Request(series, v, outputs, horizon_of(spec), weights, change)
    predictor = choose(request)
    return Law(
        spec=spec,
        predictor=predictor,
        inputs=inputs,
        weights=weights,
        change_weight=change,
        rate=np.maximum(np.quantile(np.abs(np.diff(v, axis=0))[together], 0.999, axis=0), 1e-3),
        speeds=np.std(np.diff(series.measured[:, :outputs], axis=0)[series.valid], axis=0) * signals.scale[:outputs],
        correction=choose_correction(predictor, request),
    )


def _length_scale(task: Task) -> Any:
    """The error that costs 1, as the task has it; for a goal of another kind that of the policy's inputs."""
    return np.asarray(getattr(task.cost.goal, "scale", task.spec.scales.error), float)


def _places(signals: Signals, series: Series) -> np.ndarray:
    outputs = len(signals.outputs)
    chosen = series.measured[:: max(len(series) // PLACES, 1), :outputs]
    return chosen * signals.scale[:outputs] + signals.center[:outputs]


def choose_deepc(request: Request) -> DeePC:
    """Past and ridge by held-out prediction errors, then λ_g by the cost of its commands; then a fit to all windows."""
    weights, horizon = request.weights, request.horizon
    best: tuple[float, DeePC, Windows] | None = None
    for past, learn, test in request.pasts():
        reduced = DeePC(learn, past=past, horizon=horizon, ridge=DEEPC_RIDGES[0])
        for ridge in DEEPC_RIDGES:
            candidate = reduced.regularised(ridge, LAMBDAS[-1])
            error = candidate.error(test, weights)
            if best is None or error < best[0]:
                best = error, candidate, test
    assert best is not None
    _, found, test = best
    judge = DeePC(test, past=found.past, horizon=horizon, ridge=found.ridge)
    tried = [found.regularised(found.ridge, value) for value in LAMBDAS]
    costs = [judged_cost(candidate, judge, test, weights, request.change) for candidate in tried]
    chosen = [candidate for candidate, cost in zip(tried, costs, strict=True) if cost <= AS_GOOD * min(costs)][-1]
    windows = request.windows(found.past)
    return DeePC(windows, past=found.past, horizon=horizon, ridge=found.ridge, lambda_g=chosen.lambda_g)


def choose_koopman(request: Request) -> Koopman:
    """Past, number of splines and ridge by held-out prediction errors; fitted anew to all windows."""
    best: tuple[float, dict[str, Any]] | None = None
    for past, learn, test in request.pasts():
        for splines in SPLINES:
            options: dict[str, Any] = {"past": past, "splines": splines}
            lifted = Koopman(learn, horizon=request.horizon, outputs=request.outputs, ridge=RIDGES[0], **options)
            for ridge in RIDGES:
                model = lifted.regularised(ridge)
                error = model.error(test, request.weights)
                if (best is None or error < best[0]) and (not splines or model.radius <= UNSTABLE):
                    best = error, {**options, "ridge": ridge}
    assert best is not None
    windows = request.windows(best[1]["past"])
    return Koopman(windows, horizon=request.horizon, outputs=request.outputs, **best[1])


def choose_correction(predictor: AbstractPredictor, request: Request) -> float:
    """The filter of prediction errors with which those that are left on the held-out data are smallest."""
    past, horizon, outputs = predictor.past, predictor.horizon, request.outputs
    windows = request.windows(past).split(past + horizon)[1]
    found = predictor.predict(predictor.features(windows.past_commands, windows.past_measured), windows.future_commands)
    missed = (windows.future_outputs - found).reshape(len(windows), horizon, outputs)
    errors = []
    for share in CORRECTIONS:
        bias, left = np.zeros((horizon, outputs)), []
        for k in range(horizon, len(missed)):
            bias = bias + share * (missed[k - horizon] - bias)  # known a horizon later
            left.append(missed[k] - bias)
        errors.append(float(np.mean(np.asarray(left) ** 2 @ request.weights)) if left else 0.0)
    return CORRECTIONS[int(np.argmin(errors))]
