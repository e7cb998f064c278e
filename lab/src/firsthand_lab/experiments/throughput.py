"""How many episodes a core learns per second, with one seed and with several side by side."""

import time
from pathlib import Path
from typing import Any

from . import files
from .base import Job, Report, Size
from .baseline import TINY_SETTINGS, TINY_TASK

RUNNER = f"{__name__}:run"
FILE = "throughput.csv"
TOGETHER = (1, 8)
CAPACITY = 16
"""Episodes that the buffers are made for."""


def job(size: Size) -> Job:
    """Measures both, one after the other, on one core."""
    episodes = size.pick(full=10, quick=2, tiny=1)
    counts = size.pick(full=TOGETHER, quick=TOGETHER, tiny=(1,))
    parameters = {"seeds": list(counts), "episodes": episodes, "tiny": size.name == "tiny"}
    return Job("throughput", RUNNER, parameters, steps=len(counts), weight=0.4 * episodes * sum(counts))


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Core-seconds of whole episodes (rollout, model, policy), after two that compile."""

    import jax

    from firsthand.robots.registry import make_robot
    from firsthand.tasks import excavator_task
    from firsthand.training.presets import preset

    from .learning import tuples
    from .together import Together

    tiny = parameters["tiny"]
    task = excavator_task(**tuples(TINY_TASK if tiny else {}))
    settings = preset("paper-exact").with_changes(TINY_SETTINGS if tiny else {})
    plant: Any = make_robot("excavator", task)
    rows = []
    for count in parameters["seeds"]:
        together = Together(plant.plant, task, settings, range(count), episodes=CAPACITY)
        together.run_episode()
        together.run_episode()
        jax.block_until_ready(together.state)
        began, used = time.monotonic(), time.process_time()
        for _ in range(parameters["episodes"]):
            together.run_episode()
        jax.block_until_ready(together.state)
        seconds, core_seconds = time.monotonic() - began, time.process_time() - used
        rows.append((count, count * parameters["episodes"], core_seconds, seconds))
        report(len(rows), f"{count} seeds: {rows[-1][1] / core_seconds:.2f} episodes per core-second")
    names = ("seeds", "episodes", "core_seconds", "seconds")
    files.write_csv(folder / FILE, {name: [row[i] for row in rows] for i, name in enumerate(names)})
