"""How long a step takes in exported C, beside numpy: the excavator, two hidden layers of 128 in each network.

Without an observer a step is one network; with one it is two, and the observer's correction. Wanted with an observer:
at most 20 µs in C.

python benchmarks/export_latency.py
"""

import subprocess
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from firsthand.export import ModelCard
from firsthand.export.accuracy import random_inputs
from firsthand.export.c_source import c_files
from firsthand.models import Controller, Dynamics, Observer, Policy
from firsthand.tasks import excavator_task

CALLS, INPUTS = 20001, 100
HIDDEN = (128, 128)
MAIN = """
#define _POSIX_C_SOURCE 199309L
#include "excavator_policy.h"
#include <stdio.h>
#include <time.h>

static float measured[%(inputs)d * EXCAVATOR_MEASURED], points[EXCAVATOR_POINTS * EXCAVATOR_OUTPUTS];

int main(void)
{
    float command[EXCAVATOR_COMMANDS] = {0};
    excavator_memory memory;
    if (fread(measured, sizeof measured, 1, stdin) != 1) return 1;
    excavator_begin(&memory, measured, command);
    for (int i = 0; i < %(calls)d; i++) {
        struct timespec before, after;
        clock_gettime(CLOCK_MONOTONIC, &before);
        excavator_step(&memory, measured + i %% %(inputs)d * EXCAVATOR_MEASURED, points, command);
        clock_gettime(CLOCK_MONOTONIC, &after);
        printf("%%ld\\n", (after.tv_sec - before.tv_sec) * 1000000000L + after.tv_nsec - before.tv_nsec);
    }
    return 0;
}
"""


def c_times(controller: Controller, measured: np.ndarray) -> np.ndarray:
    """Microseconds of each call."""
    spec, layers, observer = controller.spec, controller.policy.layers, controller.observer
    card = ModelCard.of(spec, layers, run="benchmark", episode=0, tracking_error=None, observer=observer)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = c_files(spec, layers, card, observer)
        for file, text in {**files, "main.c": MAIN % {"calls": CALLS, "inputs": INPUTS}}.items():
            (folder / file).write_text(text)
        sources = [folder / "excavator_policy.c", folder / "main.c"]
        subprocess.run(["gcc", "-std=c99", "-O3", *sources, "-lm", "-o", folder / "main"], check=True)
        ran = subprocess.run([folder / "main"], check=True, capture_output=True, input=measured.tobytes())
    return np.asarray(ran.stdout.split(), float) / 1e3


def numpy_times(controller: Controller, measured: np.ndarray) -> np.ndarray:
    """Microseconds of each step of the robot's own code."""
    policy, observer = controller.for_robot()
    states, points = random_inputs(controller.spec, INPUTS, 0)
    command, times = np.zeros(controller.spec.layout.num_commands, np.float32), []
    if observer is not None:
        observer.start_motion(states[0])
    for i in range(CALLS):
        row, state, preview = measured[i % INPUTS], states[i % INPUTS], points[i % INPUTS]
        began = time.perf_counter_ns()
        if observer is not None:
            state = observer.observe(command, row)
        command = policy(state, preview)
        times.append((time.perf_counter_ns() - began) / 1e3)
    return np.asarray(times)


def main() -> None:
    spec = excavator_task().spec
    assert spec.policy.hidden == HIDDEN
    policy = Policy.random(spec, key=jax.random.key(0), last_gain=1.0)
    observer = Observer.register(Dynamics.random(spec, HIDDEN, key=jax.random.key(1)))
    noise = np.random.default_rng(0).normal(size=(INPUTS, spec.layout.num_measured))
    measured = np.asarray(spec.scales.measured_center) + 0.1 * np.asarray(spec.scales.change_scale) * noise
    for name, controller in (("policy", Controller(policy)), ("policy and observer", Controller(policy, observer))):
        compiled, interpreted = (f(controller, measured.astype(np.float32)) for f in (c_times, numpy_times))
        for what, times in (("C, gcc -O3", compiled), ("numpy", interpreted)):
            print(f"{name:20} {what:10} median {np.median(times):6.2f} µs, p99 {np.quantile(times, 0.99):6.2f} µs")
        print(f"{name:20} ratio of the medians {np.median(interpreted) / np.median(compiled):.1f}")


if __name__ == "__main__":
    main()
