"""One machine and several, each simulated in processes of its own: how long until the same error is reached.

    python benchmarks/several_machines.py [--machines 2] [--episodes 12] [--seeds 0]

Every machine is `firsthand machine excavator --vary 0.03` (another one of its kind: 3 % off in every number of its
valves and pump) behind `firsthand-onboard serve`, in lock-step on loopback; the learner is `firsthand train tcp/a
tcp/b`. An episode is ten trajectories, however many machines share them, so that an update sees as much data. The error
is that of an episode's random references, measured by exact sensors.

Time is robot time (of the longest share) and what the learner computes in between, without the first two updates, in
which it compiles. Per level of error: when the mean of three episodes first falls below it. Writes
benchmarks/results/several-machines.json: a row per run, and what an episode costs in bytes and seconds per machine.
"""

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "several-machines.json"
LEVELS_CM = (10.0, 5.0, 3.0, 2.0, 1.5, 1.0)
SMOOTHED = 3


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Machine:
    """A simulated machine and its onboard program."""

    def __init__(self, seed: int, share: float, folder: Path) -> None:
        vary = ("--vary", str(share), "--seed", str(seed))
        listen = ("--lock-step", "--listen", "127.0.0.1:0")
        self.plant = self._start("firsthand", "machine", "excavator", *listen, *vary, errors=folder / "plant.log")
        assert self.plant.stdout is not None
        found = re.search(r"at ([\d.]+:\d+)", self.plant.stdout.readline())
        assert found, (folder / "plant.log").read_text()
        self.address = f"tcp/127.0.0.1:{free_port()}"
        options = ("--machine-option", f"address={found[1]}", "--machine-option", "patience_s=60")
        self.onboard = self._start(
            *("firsthand_onboard", "serve", "--listen", self.address, "--lease", "30", "--priority", "0"),
            *("--machine", "firsthand_onboard.simulation:UdpMachine", *options),
            errors=folder / "onboard.log",
        )
        assert self.onboard.stdout is not None
        self.onboard.stdout.readline()

    def _start(self, *command: str, errors: Path) -> subprocess.Popen[str]:
        with errors.open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
            )

    def end(self) -> None:
        for process in (self.onboard, self.plant):
            process.terminate()
            process.wait(30)


def train(count: int, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run with so many machines; its curve and what it cost."""
    folder = Path(tempfile.mkdtemp(prefix="machines-"))
    machines: list[Machine] = []
    try:
        for i in range(count):
            place = folder / f"machine{i}"
            place.mkdir()
            machines.append(Machine(1 + i, options.vary, place))
        command = [sys.executable, "-m", "firsthand", "train", *(machine.address for machine in machines)]
        command += ["--out", str(folder / "run"), "--episodes", str(options.episodes), "--seed", str(seed)]
        command += ["--no-report", "--keep-going"]
        subprocess.run(command, check=True, env={**os.environ, "COLUMNS": "200"})
        rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        sizes = [path.stat().st_size for path in (folder / "run" / "episodes").iterdir()]
    finally:
        for machine in machines:
            machine.end()
        shutil.rmtree(folder, ignore_errors=True)
    computing = [0.0, 0.0, *(row["update_time_s"] for row in rows[2:])]
    return {
        "machines": count,
        "seed": seed,
        "error_cm": [100 * row["measured_tracking_error"] for row in rows],
        "robot_time_s": [row["robot_time_s"] for row in rows],
        "time_s": (np.cumsum(computing) + [row["robot_time_s"] for row in rows]).tolist(),
        "update_s": float(np.median([row["update_time_s"] for row in rows[2:]])),
        "episode_bytes": float(np.mean(sizes)),
    }


def reached(run: dict[str, Any], level_cm: float, clock: str) -> float:
    """When the mean of three episodes first falls below a level; infinite where it never does."""
    errors = run["error_cm"]
    smooth = [np.mean(errors[max(0, k - SMOOTHED + 1) : k + 1]) for k in range(len(errors))]
    times = [run[clock][k] for k in range(SMOOTHED - 1, len(errors)) if smooth[k] <= level_cm]
    return min(times, default=float("inf"))


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--vary", type=float, default=0.03)
    options = parser.parse_args()
    runs = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else []
    for seed in options.seeds:
        for count in (1, options.machines):
            runs = [run for run in runs if (run["machines"], run["seed"]) != (count, seed)]
            runs.append(rounded(train(count, seed, options)))
            runs.sort(key=lambda run: (run["machines"], run["seed"]))
            RESULTS.write_text(json.dumps({"vary": options.vary, "runs": runs}, indent=1) + "\n")
    for seed in options.seeds:
        one, more = (next(r for r in runs if (r["machines"], r["seed"]) == (n, seed)) for n in (1, options.machines))
        for level in LEVELS_CM:
            for clock, name in (("robot_time_s", "robot time"), ("time_s", "with computing")):
                alone, together = reached(one, level, clock), reached(more, level, clock)
                if np.isfinite(alone):
                    share = f"{100 * together / alone:.0f} %" if np.isfinite(together) else "not reached"
                    print(f"seed {seed}, {level:g} cm, {name}: {alone:.0f} s alone, {together:.0f} s, {share}")


if __name__ == "__main__":
    main()
