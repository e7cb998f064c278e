"""`firsthand evaluate`."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ..errors import UserError


@dataclass(frozen=True)
class Evaluate:
    """Follow the fixed references with a run's policy, and print the metrics of the paper's table 1."""

    run_folder: Positional[Path]
    """Folder of the run."""
    episode: int | None = None
    """Take the policy that ran this episode (from 1); by default the newest policy."""
    speed: float | None = None
    """Speed along the references in m/s; by default the task's (0.5 for the excavator)."""
    json: bool = False
    """Print one JSON object instead of a table."""
    oracle: bool = False
    """Compare with the oracle: the same policy class trained with the plant's true gradients (minutes, then cached)."""

    def run(self) -> int:
        """Evaluate and print."""
        if self.speed is not None and not (math.isfinite(self.speed) and 0 < self.speed <= 5):
            raise UserError(f"speed is {self.speed}, but must lie between 0 and 5 m/s.")
        from ..evaluation import evaluate
        from ..training.restore import RestoredRun
        from .results import oracle_of, print_evaluation

        restored = RestoredRun.open(self.run_folder)
        result = evaluate(restored.robot(), restored.policy(self.episode), speed=self.speed)
        oracle = oracle_of(restored, compute=self.oracle, speed=self.speed)
        if self.json:
            data = result.as_dict()
            if oracle is not None:
                data["oracle"] = oracle
            print(json.dumps(data, indent=2, allow_nan=False))
        else:
            print_evaluation(restored, result, oracle)
        return 0
