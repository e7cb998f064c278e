"""The policy that a run keeps: the best that the robot has proven."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..models import Policy

PROOF_EPISODES = 3
"""Episodes that a policy's proof looks at: its own and the ones before it."""
MIN_VALID_SHARE = 0.5
"""A policy is proven only by an episode of which more than this share was measured soundly."""


class KeptPolicy(NamedTuple):
    """A policy and what proves it."""

    policy: Policy
    """The weights."""
    episode: int
    """The episode that it ran, from 1."""
    tracking_error: float
    """Its error there, as measured: what a machine can know of itself."""
    proof: float
    """The lower, the better; see `proof`."""


def proof(errors: Sequence[float]) -> float:
    """How well the last episode's policy is proven, given the errors of the episodes so far; the lower, the better.

    The larger of its own error and the mean over `PROOF_EPISODES` episodes. References differ in difficulty: one easy
    episode proves little, unless the policies just before, which are much like it, did well too.
    """
    recent = [error for error in errors[-PROOF_EPISODES:] if math.isfinite(error)]
    return max(errors[-1], float(np.mean(recent))) if recent else math.nan


def proofs(errors: Sequence[float], valid_shares: Sequence[float]) -> list[float]:
    """The proof of each episode's policy; NaN where too little was measured."""
    shares = enumerate(valid_shares)
    return [proof(errors[: k + 1]) if share > MIN_VALID_SHARE else math.nan for k, share in shares]


class PolicyKeeper:
    """Decides after each episode whether its policy is the best one so far."""

    def __init__(self, kept: KeptPolicy | None = None, errors: Sequence[float] = ()) -> None:
        self.kept = kept
        self._errors = list(errors)[-PROOF_EPISODES:]

    def consider(self, policy: Policy, episode: int, error: float, valid_share: float) -> bool:
        """Whether the policy that ran this episode is the one to keep from now on."""
        self._errors = [*self._errors, error][-PROOF_EPISODES:]
        proven = proof(self._errors)
        best = math.inf if self.kept is None else self.kept.proof
        if not (proven < best and valid_share > MIN_VALID_SHARE):
            return False
        self.kept = KeptPolicy(policy, episode, error, proven)
        return True
