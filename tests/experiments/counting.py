"""An experiment whose right answer is known: each job adds up numbers, and leaves a trace of every number it added."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from firsthand_lab.experiments import (
    Comparison,
    Cost,
    Experiment,
    Finding,
    Job,
    Report,
    Result,
    Seeds,
    Size,
    Verdict,
    files,
)

STEPS = 8


def add_up(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Σ k over the steps, a checkpoint after each; `die_at` kills the worker there, once, `doomed_at` always."""
    state = folder / files.CHECKPOINT / "state.json"
    kept = files.read_json(state) if state.exists() else {"done": 0, "total": 0, "added": []}
    for k in range(kept["done"], parameters["steps"]):
        if k == parameters.get("die_at") and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if k == parameters.get("doomed_at"):
            report(k, "about to die")
            os.kill(os.getpid(), signal.SIGKILL)
        if k == parameters.get("fail_at"):
            raise RuntimeError("this job always fails")
        kept = {"done": k + 1, "total": kept["total"] + k * parameters["factor"], "added": [*kept["added"], k]}
        time.sleep(parameters.get("pause_s", 0.0))
        files.write_json(state, kept)
        report(k + 1, f"total {kept['total']}")
    files.write_json(folder / "total.json", {**kept, "pid": os.getpid()})


class Counting(Experiment):
    """Adds up."""

    name, shows, figure = "counting", "that sums are right", "none"
    cost = Cost(full_min=0.1, quick_s=1.0)
    seeds = Seeds(full=3, quick=2, tiny=2)

    def __init__(self, **more: Any) -> None:
        self.more = more

    def jobs(self, size: Size) -> list[Job]:
        return [
            Job(f"factor-{i}", f"{__name__}:add_up", {"factor": i, "steps": STEPS, **self.more}, steps=STEPS)
            for i in range(size.seeds)
        ]

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        totals = [result.json("total.json")["total"] for result in results]
        figure = Figure()
        figure.subplots().plot(totals)
        right = totals == [sum(range(STEPS)) * i for i in range(size.seeds)]
        verdict = Verdict.PASS if right else Verdict.FAIL
        return Finding(
            verdict,
            "The sums were compared.",
            (Comparison("sums", str(totals), "n(n−1)/2", verdict),),
            figures={"totals": figure},
            tables={"totals": {"factor": range(size.seeds), "total": totals}},
        )
