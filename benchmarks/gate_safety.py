"""The gate against machines that stop slowly, commands that chatter, and hostile measurements.

    python benchmarks/gate_safety.py [--quick] [--steps 1000000] [--only TABLE] [--out FILE]

Three tables: how far machines pass a joint limit at full command (in percent of the joint's range, below zero where
they stay inside), the mean that is left of commands whose mean is zero, and a million steps in which measurements and
commands are whatever a fault or an attacker makes of them. Numpy only.
"""

import argparse
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from firsthand_onboard import (
    ControlSpec,
    Limits,
    PolicyShape,
    ReferenceSpec,
    Scales,
    SelectedOutput,
    SpecError,
    StateLayout,
)
from firsthand_onboard.gate import Gate
from firsthand_onboard.gate_limits import GateLimits, check_stops_are_known
from firsthand_onboard.loop import Executor
from firsthand_onboard.timing import LockStep

HALF = 2.0
"""Joint limits are ± this, so that the range is 4 rad."""


def make_spec(period_s: float = 0.04, *, velocity: bool = True, joints: int = 1) -> ControlSpec:
    """Joints from -2 to 2 rad, commands from -1 to 1."""
    names = tuple(f"joint {i}" for i in range(joints))
    measured = names + (tuple(f"{name} velocity" for name in names) if velocity else ())
    n, position = len(measured), tuple(range(joints))
    return ControlSpec(
        robot="benchmark",
        period_s=period_s,
        layout=StateLayout(measured, position, tuple(range(joints, n)), names, 2),
        kinematics=SelectedOutput(position),
        preview=(1, 2),
        scales=Scales((0.0,) * n, (1.0,) * n, (0.1,) * n, 1.0, 1.0),
        limits=Limits((-1.0,) * joints, (1.0,) * joints, (-HALF,) * joints, (HALF,) * joints),
        reference=ReferenceSpec("output", 10, (-1.0,) * joints, (1.0,) * joints),
        policy=PolicyShape((4,)),
    )


@dataclass
class Actuator:
    """One joint: a command becomes a speed (with a lag, or of second order) or a force, after a dead time."""

    lag_s: float = 0.0
    frequency_hz: float = 0.0
    acceleration: float = 0.0
    """At full command, of a mass without friction."""
    speed: float = 1.0
    dead_s: float = 0.0
    damping: float = 0.3
    stopping: dict[str, Any] = field(default_factory=dict)
    """What an engineer would declare."""

    def run(self, period_s: float, start: float) -> Iterator[tuple[float, float]]:
        """A generator that is sent commands and gives positions and speeds."""
        parts = max(round(period_s / 0.001), 10)
        dt = period_s / parts
        waiting = deque([0.0] * round(self.dead_s / dt))
        position, speed, change = start, 0.0, 0.0
        while True:
            command = yield position, speed
            for _ in range(parts):
                waiting.append(command)
                u = waiting.popleft()
                if self.acceleration:
                    speed += dt * self.acceleration * u
                elif self.frequency_hz:
                    omega = 2 * math.pi * self.frequency_hz
                    change += dt * (omega**2 * (self.speed * u - speed) - 2 * self.damping * omega * change)
                    speed += dt * change
                else:
                    speed += dt * (self.speed * u - speed) / self.lag_s
                position += dt * speed


MACHINES = {
    "lag 0.1 s": Actuator(0.1, stopping={"lag_s": 0.1}),
    "lag 0.3 s": Actuator(0.3, stopping={"lag_s": 0.3}),
    "lag 0.5 s": Actuator(0.5, stopping={"lag_s": 0.5}),
    "lag 1 s": Actuator(1.0, stopping={"lag_s": 1.0}),
    "lag 0.3 s at 3 rad/s": Actuator(0.3, speed=3.0, stopping={"lag_s": 0.3}),
    "second order, 1 Hz": Actuator(frequency_hz=1.0, stopping={"lag_s": 0.2}),
    "second order, 3 Hz": Actuator(frequency_hz=3.0, stopping={"lag_s": 0.07}),
    "lag 0.3 s, dead time 0.2 s": Actuator(0.3, dead_s=0.2, stopping={"lag_s": 0.3, "dead_time_s": 0.2}),
    "mass, 1 rad/s²": Actuator(acceleration=1.0, stopping={"lag_s": None, "deceleration": 1.0, "brake": 1.0}),
}
"""The machines of the figures."""
MORE_MACHINES = {
    "lag 0.7 s, dead time 0.3 s": Actuator(0.7, dead_s=0.3, stopping={"lag_s": 0.7, "dead_time_s": 0.3}),
    "lag 0.2 s at 2 rad/s, dead time 0.1 s": Actuator(
        0.2, speed=2.0, dead_s=0.1, stopping={"lag_s": 0.2, "dead_time_s": 0.1}
    ),
    "lag 2 s": Actuator(2.0, stopping={"lag_s": 2.0}),
    "second order, 0.5 Hz": Actuator(frequency_hz=0.5, stopping={"lag_s": 0.4}),
    "mass, 5 rad/s², dead time 0.1 s": Actuator(
        acceleration=5.0, dead_s=0.1, stopping={"lag_s": None, "deceleration": 2.5, "brake": 0.5, "dead_time_s": 0.1}
    ),
}


def overshoot(
    actuator: Actuator,
    *,
    stopping: dict[str, Any] | None,
    period_s: float = 0.04,
    velocity: bool = True,
    start: float = 0.0,
    noise: float = 0.0,
    seconds: float = 15.0,
    direction: int = 1,
    directed: bool = True,
) -> tuple[float, str]:
    """How far full command takes the joint beyond a limit, in percent of its range, and the fault if there was one.

    After a fault the command stays neutral, and the joint goes wherever that takes it. Not `directed`: nobody has
    declared which command moves the joint.
    """
    spec = make_spec(period_s, velocity=velocity)
    directions = ((0, direction),) if directed else None
    gate = Gate(spec, GateLimits.of(spec, directions=directions, stopping=stopping))
    plant = actuator.run(period_s, start)
    position, speed = next(plant)
    rng, state, fault, furthest = np.random.default_rng(0), gate.start(), "", -math.inf
    for _ in range(round(seconds / period_s)):
        measured = np.asarray([position, speed][: 1 + velocity]) + noise * rng.standard_normal(1 + velocity)
        command = gate.neutral
        if not fault:
            result = gate(state, np.full(1, float(direction)), measured.astype(np.float32))
            state, command, fault = result.state, result.command, result.fault
        position, speed = plant.send(direction * float(command[0]))  # pyright: ignore[reportAttributeAccessIssue]
        furthest = max(furthest, abs(position) - HALF)
    return 100 * furthest / (2 * HALF), fault


def measure_overshoot(quick: bool) -> dict[str, dict[str, Any]]:
    """The worst over periods, starts, noise, with and without measured speeds."""
    periods = (0.04,) if quick else (0.04, 0.01, 0.1)
    results = {}
    for name, actuator in (MACHINES if quick else {**MACHINES, **MORE_MACHINES}).items():
        worst = {}
        for label, stopping in (
            ("declared", actuator.stopping),
            ("directions unknown", actuator.stopping),
        ):
            directed = label != "directions unknown"
            if not directed and "brake" in actuator.stopping:  # refused: nobody knows which command would brake it
                continue
            worst[label] = max(
                overshoot(
                    actuator,
                    stopping=stopping,
                    period_s=period,
                    velocity=velocity,
                    start=start,
                    noise=noise,
                    direction=direction,
                    directed=directed,
                )[0]
                for period in periods
                for velocity in (True, False)
                for start in (0.0, 1.8)
                for noise in (0.0, 0.002)
                for direction in ((1,) if quick else (1, -1))
            )
        results[name] = worst
    results["nothing declared"] = {"refused": is_refused()}
    return results


def is_refused() -> bool:
    """Whether a machine of which nobody has said how it stops is refused, also one that is a simulation."""
    spec = make_spec()
    for simulated in (False, True):
        try:
            check_stops_are_known(spec, GateLimits.of(spec, directions=((0, 1),)), None, simulated=simulated)
        except SpecError:
            continue
        return False
    return True


def _random_signs(rng: np.random.Generator, k: int) -> float:
    return float(rng.choice([-1.0, 1.0]))


PATTERNS: dict[str, Callable[[np.random.Generator, int], float]] = {
    "+ −": lambda _, k: 1.0 - 2.0 * (k % 2),
    "− +": lambda _, k: 2.0 * (k % 2) - 1.0,
    "+ + − −": lambda _, k: 1.0 if k % 4 < 2 else -1.0,
    "+ + + − − −": lambda _, k: 1.0 if k % 6 < 3 else -1.0,
    "6 of each": lambda _, k: 1.0 if k % 12 < 6 else -1.0,
    "15 of each": lambda _, k: 1.0 if k % 30 < 15 else -1.0,
    "small, + −": lambda _, k: 0.3 * (1.0 - 2.0 * (k % 2)),
    "tiny, + −": lambda _, k: 0.1 * (1.0 - 2.0 * (k % 2)),
    "huge, + −": lambda _, k: 1e30 * (1.0 - 2.0 * (k % 2)),
    "one up, two half down": lambda _, k: 1.0 if k % 3 == 0 else -0.5,
    "random signs": _random_signs,
    "normal": lambda rng, _: float(rng.standard_normal()),
    "sine of 5 periods": lambda _, k: math.sin(2 * math.pi * k / 5),
    "sine of 7.3 periods": lambda _, k: math.sin(2 * math.pi * k / 7.3),
    "pulses, 1 of 12": lambda _, k: 1.0 if k % 12 < 1 else -1.0 / 11.0,
    "pulses, 3 of 20": lambda _, k: 1.0 if k % 20 < 3 else -3.0 / 17.0,
    "pulses, 6 of 20": lambda _, k: 1.0 if k % 20 < 6 else -6.0 / 14.0,
    "pulses, 5 of 17": lambda _, k: 1.0 if k % 17 < 5 else -5.0 / 12.0,
    "saw tooth of 14": lambda _, k: 2.0 * (k % 14) / 13.0 - 1.0,
    "saw tooth of 22": lambda _, k: 2.0 * (k % 22) / 21.0 - 1.0,
    "saw tooth of 33": lambda _, k: 1.0 - 2.0 * (k % 33) / 32.0,
    "triangle, 3 of 5 up": lambda _, k: (k % 30) / 9.0 - 1.0 if k % 30 < 18 else 1.0 - (k % 30 - 18) / 6.0,
    "triangle, 1 of 6 up": lambda _, k: (k % 18) - 1.0 if k % 18 < 3 else 1.0 - (k % 18 - 3) / 7.5,
    "two tones": lambda _, k: 0.5 * math.sin(2 * math.pi * k / 6) + 0.5 * math.sin(2 * math.pi * k / 6.5 + 1.0),
    "in bursts": lambda _, k: (1.0 - 2.0 * (k % 2)) * (k % 50 < 25),
}


def measure_chatter(steps: int) -> dict[str, float]:
    """|mean| of what comes out, in percent of the command range, the worst over periods and amplitudes' limits."""
    results = {}
    for name, pattern in PATTERNS.items():
        worst = 0.0
        for period in (0.1, 0.04, 0.02, 0.01):
            for changes in ({}, {"acceleration": (math.inf,)}, {"rate": (3.0,), "acceleration": (10.0,)}):
                spec = make_spec(period)
                gate = Gate(spec, GateLimits.of(spec, directions=((0, 1),), check_sensors=0, **changes))
                rng, state, total = np.random.default_rng(1), gate.start(), 0.0
                for k in range(steps):
                    result = gate(state, np.asarray([pattern(rng, k)]), np.zeros(2))
                    state, total = result.state, total + float(result.command[0])
                worst = max(worst, 100 * abs(total / steps) / 2.0)
        results[name] = worst
    return results


HOSTILE = (math.nan, math.inf, -math.inf, 3e38, -3e38, 1e308, -1e308, 5e-324, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 1e6)


def measure_hostile(steps: int, seed: int = 0) -> dict[str, float]:
    """Steps with measurements and commands from an attacker; counts what must not happen."""
    spec = make_spec(joints=3)
    limits = GateLimits.of(
        spec,
        (0.0, 0.2, -0.5),
        ((0, 1), (1, -1), (2, 1)),
        {
            "lag_s": [0.2, None, 0.3],
            "deceleration": [1.0, 1.0, 5.0],
            "brake": [0.0, 0.5, 0.0],
            "speed": [1.0, 2.0, 3.0],
        },
        box_low=(-1.9, -1.9, -1.9),
        box_high=(1.9, 1.9, 1.9),
        tracking_error=3.0,
        speed=(1.0, 2.0, 3.0),
    )
    gate, rng = Gate(spec, limits), np.random.default_rng(seed)
    low, high, neutral = (np.asarray(v) for v in (limits.low, limits.high, limits.neutral))
    bad = {"outside": 0, "not finite": 0, "not neutral at a fault": 0, "faults": 0}
    state, truth = gate.start(), np.zeros(6)
    began = time.perf_counter()
    for _ in range(steps):
        truth[:3] = np.clip(truth[:3] + 0.04 * truth[3:], -1.7, 1.7)
        truth[3:] = np.clip(truth[3:] + 0.1 * rng.standard_normal(3), -0.8, 0.8)
        measured, wanted = truth.copy(), 2.0 * rng.standard_normal(3)
        if rng.random() < 0.05:
            measured[rng.integers(6)] = HOSTILE[rng.integers(len(HOSTILE))]
        if rng.random() < 0.05:
            wanted[rng.integers(3)] = HOSTILE[rng.integers(len(HOSTILE))]
        if rng.random() < 0.01:
            measured[:] = HOSTILE[rng.integers(len(HOSTILE))]
        if rng.random() < 0.002:
            measured = measured[: rng.integers(6)] if rng.random() < 0.5 else measured[None]
        age = 0.0 if rng.random() < 0.99 else HOSTILE[rng.integers(len(HOSTILE))]
        authority = 1.0 if rng.random() < 0.9 else HOSTILE[rng.integers(len(HOSTILE))]
        reference = None if rng.random() < 0.5 else truth[:3] + rng.standard_normal(3)
        with np.errstate(all="ignore"):
            result = gate(state, wanted, measured, age_s=age, authority=authority, reference=reference)
        command = result.command.astype(float)
        bad["not finite"] += not np.isfinite(command).all()
        bad["outside"] += not ((low <= command) & (command <= high)).all()
        bad["not neutral at a fault"] += bool(result.fault) and not (result.command == gate.neutral).all()
        bad["faults"] += bool(result.fault)
        state = result.state
    assert np.isfinite(neutral).all()
    return {"steps": steps, **bad, "µs per step": 1e6 * (time.perf_counter() - began) / steps}


class Driven:
    """A machine in lock-step, for the executor."""

    lock_step = True

    def __init__(self, actuator: Actuator, period_s: float = 0.04) -> None:
        self._plant = actuator.run(period_s, 0.0)
        self._seen, self.furthest = next(self._plant), -math.inf

    def read(self) -> np.ndarray:
        """Position and speed."""
        return np.asarray(self._seen)

    def write(self, command: np.ndarray) -> None:
        """One period."""
        self._seen = self._plant.send(float(command[0]))  # pyright: ignore[reportAttributeAccessIssue]
        self.furthest = max(self.furthest, abs(self._seen[0]) - HALF)

    def neutral(self) -> None:
        """Time stands still."""


def measure_endings() -> dict[str, float]:
    """A mass that `brake` stops: how fast it still is when the executor ends a motion in the middle, rad/s."""
    actuator, spec = MACHINES["mass, 1 rad/s²"], make_spec()
    results = {}
    for steps in (10, 30, 60):
        machine = Driven(actuator)
        limits = GateLimits.of(spec, directions=((0, 1),), stopping=actuator.stopping)
        executor = Executor(spec, machine, limits, LockStep(spec.period_s))
        executor.play(np.ones((steps, 1), np.float32))
        executor.come_to_rest()
        results[f"after {steps} steps"] = abs(float(machine.read()[1]))
    try:
        GateLimits.of(spec, directions=((0, 1),), stopping={"lag_s": None})
        results["without brake"] = math.inf
    except SpecError:
        results["without brake: refused"] = 0.0
    return results


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one period, fewer steps: a test")
    parser.add_argument("--steps", type=int, help="hostile steps (default 10⁶; quick: 5000)")
    parser.add_argument("--only", action="append", help="one of the tables in FILE; may be given several times")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where results are kept; other tables in it stay")
    given = parser.parse_args()
    steps = given.steps or (5_000 if given.quick else 1_000_000)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "overshoot_percent_of_range": lambda: measure_overshoot(given.quick),
        "chatter_mean_percent_of_range": lambda: measure_chatter(300 if given.quick else 3000),
        "hostile": lambda: measure_hostile(steps),
        "speed_after_braking": measure_endings,
    }
    results = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    for name in given.only or parts:
        results[name] = parts[name]()
        print(name, json.dumps(results[name], indent=2, ensure_ascii=False), flush=True)
        if given.out:
            given.out.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
