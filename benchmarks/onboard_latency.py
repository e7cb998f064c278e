"""What the onboard program costs: work per step, policy and observer alone, the link's share of the robot's time.

    python benchmarks/onboard_latency.py [--seconds 20] [--out FILE]

Policy and gate, with and without an observer, are timed at 25 Hz, as on the robot, with SCHED_FIFO where that is
permitted. The link's share is measured with the toy machine in real time: how much longer a job takes, from asking to
having everything, than the robot moves. Both depend on how busy the computer is; the load is printed.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as `firsthand-onboard serve` does

import jax
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from firsthand.models import Dynamics, Observer
from firsthand.tasks import excavator_task
from firsthand_onboard import NumpyObserver, NumpyPolicy
from firsthand_onboard.gate import Gate
from firsthand_onboard.gate_limits import GateLimits
from firsthand_onboard.timing import no_garbage_collection, request_real_time
from firsthand_onboard.toy import toy_spec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from onboard_runtime.processes import begin, random_policy, rig, wait_for

SPEC = excavator_task().spec


def steps(seconds: float) -> dict[str, float]:
    """The excavator's observer and policy (two layers of 128 each) and the full gate, at 25 Hz and back to back."""
    learned = Observer.register(Dynamics.random(SPEC, (128, 128), key=jax.random.key(0)))
    observer = NumpyObserver.of(SPEC, learned)
    arrays = random_policy(SPEC)
    policy = NumpyPolicy(SPEC, [(arrays[f"policy.{i}.weight"], arrays[f"policy.{i}.bias"]) for i in range(3)])
    directions = ((0, -1), (1, 1), (2, 1), (3, 1))
    stopping = {"lag_s": 0.25, "dead_time_s": 0.08, "speed": 5.0}
    box = {"box_low": (2.0, -1.0), "box_high": (8.0, 6.0), "tracking_error": 20.0}
    limits = GateLimits.of(SPEC, None, directions, stopping, **box)
    gate = Gate(SPEC, limits)
    rng = np.random.default_rng(0)
    state = np.zeros(SPEC.layout.size, np.float32)
    rest = measured = np.asarray([-0.85, 1.2, 0.6, 0.8, 0, 0, 0, 0], np.float32)
    state[:8] = state[8:16] = state[16:24] = measured
    preview = rng.uniform(3, 6, (1 + len(SPEC.preview), 2)).astype(np.float32)
    work, observed, alone, observing = [], [], [], []
    observer.start_motion(state)
    gate_state = gate.start()
    with no_garbage_collection():
        for _ in track(range(round(seconds / SPEC.period_s)), "at 25 Hz"):
            time.sleep(SPEC.period_s)
            measured = (rest + 1e-3 * rng.standard_normal(8)).astype(np.float32)  # a frozen sensor would be a fault
            began = time.perf_counter()
            gated = gate(gate_state, policy(state, preview), measured, reference=preview[0])
            work.append(time.perf_counter() - began)
            assert not gated.fault, gated.fault
            gate_state = gated.state
            began = time.perf_counter()
            observer.observe(gated.command, measured)
            observed.append(work[-1] + time.perf_counter() - began)
        for _ in range(20_000):
            began = time.perf_counter()
            policy(state, preview)
            alone.append(time.perf_counter() - began)
        for _ in range(20_000):
            began = time.perf_counter()
            observer.observe(gate.neutral, measured)
            observing.append(time.perf_counter() - began)
    return {
        "step_median_ms": 1e3 * float(np.median(work)),
        "step_p99.9_ms": 1e3 * float(np.quantile(work, 0.999)),
        "step_with_observer_median_ms": 1e3 * float(np.median(observed)),
        "step_with_observer_p99.9_ms": 1e3 * float(np.quantile(observed, 0.999)),
        "observer_median_us": 1e6 * float(np.median(observing)),
        "policy_median_us": 1e6 * float(np.median(alone)),
        "policy_p99.9_us": 1e6 * float(np.quantile(alone, 0.999)),
    }


def link(trajectories: int) -> dict[str, float]:
    """A job in real time over the link."""
    spec = toy_spec()
    with tempfile.TemporaryDirectory() as folder, rig(Path(folder), strict=True) as made:
        client = made.client()
        began = time.monotonic()
        begin(client, spec, "benchmark", np.zeros((trajectories, 2), np.float32))
        wait_for(lambda: client.next(0.05) is None and len(client.others) == trajectories, "the data", 300)
        took = time.monotonic() - began
        status = client.ask("status").body
        client.close()
    robot = trajectories * spec.reference.steps * spec.period_s
    return {
        "robot_s": robot,
        "took_s": took,
        "link_share_percent": 100 * (took / robot - 1),
        "overruns": status["overruns"],
        "worst_late_ms": status["worst_late_ms"],
    }


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--trajectories", type=int, default=15)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warning = request_real_time(50)
    results = {"load": os.getloadavg()[0], "real_time": not warning, **steps(given.seconds)}
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    results.update(link(given.trajectories))
    table = Table("figure", "value")
    for name, value in results.items():
        table.add_row(name, f"{value:.4g}")
    Console().print(table)
    if given.out:
        given.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
