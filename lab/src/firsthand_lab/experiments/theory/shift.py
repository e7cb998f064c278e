"""How far the data of one episode is from the next one's: a lower bound on the total variation Δ_t.

For any set S, ν(S) − ν′(S) ≤ ‖ν − ν′‖_TV. A classifier that tells the two samples apart is such a set, and on data that
it was not trained on its rate of true alarms minus that of false alarms estimates ν(S) − ν′(S) without bias. So the
estimate bounds Δ_t **from below**, up to its standard error. How far below depends on the classifier; no finite sample
bounds the total variation of continuous distributions from above without further assumptions.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from firsthand.optim.rollout import Rollout

NEWTON_STEPS = 8
RIDGE = 1e-2
"""Weight of the squared coefficients in the classifier's loss, per sample."""


class ShiftBound(NamedTuple):
    """A lower bound on a total variation distance."""

    bound: float
    """The estimate. By chance it can be below zero, where the true distance cannot."""
    error: float
    """Its standard error, over trajectories."""


def transitions(rollout: Rollout, measured: int) -> Float[np.ndarray, "trajectories steps features"]:
    """z = (x, u, x⁺) of an episode, as what is measured now, the command, and the change of what is measured."""
    now = np.asarray(rollout.states)[..., :measured]
    return np.concatenate([now[:, :-1], np.asarray(rollout.commands), np.diff(now, axis=1)], axis=-1)


def variation_bound(
    before: Float[np.ndarray, "trajectories steps features"], after: Float[np.ndarray, "trajectories steps features"]
) -> ShiftBound:
    """A lower bound on the total variation distance of two samples.

    Steps of one trajectory are not independent, so whole trajectories are held out: the classifier trained on the even
    ones of both samples judges the odd ones, and the other way round, and trajectories are what the standard error
    counts. The classifier is a logistic regression on all features, their squares and their products.
    """
    alarms = []
    even = [np.arange(len(sample)) % 2 == 0 for sample in (before, after)]
    for fold in (False, True):
        train = [sample[e != fold] for sample, e in zip((before, after), even, strict=True)]
        test = [sample[e == fold] for sample, e in zip((before, after), even, strict=True)]
        says_after = classifier(*train)
        alarms.append([says_after(sample).mean(axis=1) for sample in test])
    false, true = (np.concatenate([fold[i] for fold in alarms]) for i in (0, 1))
    spread = sum(rates.var(ddof=1) / len(rates) if len(rates) > 1 else np.nan for rates in (false, true))
    return ShiftBound(float(true.mean() - false.mean()), float(np.sqrt(spread)))


def classifier(before: Float[np.ndarray, "a steps features"], after: Float[np.ndarray, "b steps features"]):
    """A function from samples to whether each looks like one of `after`."""
    samples = np.concatenate([before.reshape(-1, before.shape[-1]), after.reshape(-1, after.shape[-1])])
    center, scale = samples.mean(axis=0), np.maximum(samples.std(axis=0), 1e-9)
    upper = np.triu_indices(samples.shape[1])

    def features(z: np.ndarray) -> np.ndarray:
        z = np.clip((z - center) / scale, -8.0, 8.0)
        products = z[..., upper[0]] * z[..., upper[1]]
        return np.concatenate([np.ones((*z.shape[:-1], 1)), z, products], axis=-1)

    x = features(samples)
    first, second = before.shape[0] * before.shape[1], after.shape[0] * after.shape[1]
    label = np.concatenate([np.zeros(first), np.ones(second)])
    weight = np.concatenate([np.full(first, 0.5 / first), np.full(second, 0.5 / second)])  # balanced
    beta = np.zeros(x.shape[1])
    for _ in range(NEWTON_STEPS):
        share = 1.0 / (1.0 + np.exp(-np.clip(x @ beta, -30.0, 30.0)))
        gradient = x.T @ (weight * (share - label)) + RIDGE * beta
        hessian = (x * (weight * share * (1.0 - share))[:, None]).T @ x + RIDGE * np.eye(len(beta))
        beta = beta - np.linalg.solve(hessian, gradient)

    def says_after(z: Float[np.ndarray, "*any features"]) -> Bool[np.ndarray, "*any"]:
        return features(z) @ beta > 0

    return says_after
