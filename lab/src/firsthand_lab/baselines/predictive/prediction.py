"""What a predictor is to the controller: features of the past, a prediction, and a quadratic cost of commands."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from .recording import Windows


@dataclass(frozen=True)
class Plan:
    """What future commands v cost apart from their changes: ½ vᵀ H v + qᵀ v + const, with q linear in what is known.

    φ are the features of the past, r the reference of the outputs over the horizon.
    """

    hessian: Float[np.ndarray, "v v"]
    from_past: Float[np.ndarray, "v features"]
    """q = from_past φ + from_reference r."""
    from_reference: Float[np.ndarray, "v r"]
    gain: Float[np.ndarray, "r v"]
    """Predicted outputs: gain v + free φ + pulled r."""
    free: Float[np.ndarray, "r features"]
    pulled: Float[np.ndarray, "r r"]


class AbstractPredictor(ABC):
    """A prediction of the outputs over the horizon that is linear in the future commands."""

    name: ClassVar[str]
    past: int
    """Steps back that it looks."""
    horizon: int
    """Steps ahead."""

    @abstractmethod
    def features(
        self, commands: Float[np.ndarray, "windows past*commands"], measured: Float[np.ndarray, "windows past*seen"]
    ) -> Float[np.ndarray, "windows features"]:
        """φ, of windows."""

    @abstractmethod
    def predict(
        self, features: Float[np.ndarray, "windows features"], commands: Float[np.ndarray, "windows v"]
    ) -> Float[np.ndarray, "windows r"]:
        """The outputs after these commands."""

    @abstractmethod
    def plan(self, weights: Float[np.ndarray, " outputs"]) -> Plan:
        """The cost Σ weights · (output − reference)² of future commands, and the predictor's own regularisation."""

    @property
    @abstractmethod
    def settings(self) -> str:
        """A summary of the choices, for people."""

    @property
    @abstractmethod
    def parameters(self) -> int:
        """Numbers that were learned."""

    def error(self, windows: Windows, weights: Float[np.ndarray, " outputs"]) -> float:
        """Mean square of the weighted prediction errors over the horizon."""
        if not len(windows):
            return float("inf")
        found = self.predict(self.features(windows.past_commands, windows.past_measured), windows.future_commands)
        missed = (found - windows.future_outputs).reshape(-1, len(weights))
        error = float(np.mean(missed**2 @ weights))
        return error if np.isfinite(error) else float("inf")


def repeat_weights(weights: Float[np.ndarray, " outputs"], horizon: int) -> Float[np.ndarray, " r"]:
    """The weights of all outputs of a horizon."""
    return np.tile(weights, horizon)
