"""How long the exported C policy takes, beside the numpy one: the excavator's, two hidden layers of 128.

python benchmarks/export_latency.py
"""

import subprocess
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from firsthand.export import ModelCard
from firsthand.export.c_source import c_files, random_inputs
from firsthand.models import Policy
from firsthand.tasks import excavator_task
from firsthand_onboard.policy import NumpyPolicy

CALLS = 20001
MAIN = """
#define _POSIX_C_SOURCE 199309L
#include "excavator_policy.h"
#include <stdio.h>
#include <time.h>

int main(void)
{
    float state[EXCAVATOR_STATE] = {0}, points[EXCAVATOR_POINTS * EXCAVATOR_OUTPUTS] = {0}, command[EXCAVATOR_COMMANDS];
    for (int i = 0; i < %d; i++) {
        struct timespec before, after;
        state[0] = 1e-4f * (float)i;
        clock_gettime(CLOCK_MONOTONIC, &before);
        excavator_evaluate(state, points, command);
        clock_gettime(CLOCK_MONOTONIC, &after);
        printf("%%ld\\n", (after.tv_sec - before.tv_sec) * 1000000000L + after.tv_nsec - before.tv_nsec);
    }
    return 0;
}
"""


def c_times(spec, layers) -> np.ndarray:
    """Microseconds of each call."""
    card = ModelCard.of(spec, layers, run="benchmark", episode=0, tracking_error=None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in {**c_files(spec, layers, card), "main.c": MAIN % CALLS}.items():
            (folder / file).write_text(text)
        sources = [folder / "excavator_policy.c", folder / "main.c"]
        subprocess.run(["gcc", "-std=c99", "-O3", *sources, "-lm", "-o", folder / "main"], check=True)
        lines = subprocess.run([folder / "main"], check=True, capture_output=True, text=True).stdout.split()
    return np.asarray(lines, float) / 1e3


def numpy_times(spec, layers) -> np.ndarray:
    policy = NumpyPolicy(spec, layers)
    states, points = random_inputs(spec, 100, 0)
    times = []
    for i in range(CALLS):
        state, preview = states[i % 100], points[i % 100]
        began = time.perf_counter_ns()
        policy(state, preview)
        times.append((time.perf_counter_ns() - began) / 1e3)
    return np.asarray(times)


def main() -> None:
    spec = excavator_task().spec
    layers = Policy.random(spec, key=jax.random.key(0), last_gain=1.0).layers
    compiled, interpreted = c_times(spec, layers), numpy_times(spec, layers)
    for name, times in (("C, gcc -O3", compiled), ("numpy", interpreted)):
        print(f"{name:12} median {np.median(times):6.2f} µs, p99 {np.quantile(times, 0.99):6.2f} µs")
    print(f"ratio of the medians {np.median(interpreted) / np.median(compiled):.1f}")


if __name__ == "__main__":
    main()
