"""Fit the networks of the built-in robot `real-excavator` anew, from the public log it comes from.

    python scripts/fit_real_excavator.py FOLDER --out sim

FOLDER holds pd_noisy.npz, pd_train.npz, pd_test.npz, learned_round2.npz and learned_round3_loaded.npz: the rows of
data_with_noise_train, data_without_noise_train, data_without_noise_test and the last two data_outcome_train_* of
ZiqingZou/EfficientTrack, in the form that docs/simulator.md gives. The first two are learned from, whole; the others
are judged on, a window every 20 rows. The new simulator.json and simulator.safetensors belong into
src/firsthand/robots/real_excavator. With `--work` each network is kept there when it is done, and the same command goes
on after the last one. `--learned pd_train` learns from a quarter of an hour only.
"""

import argparse
import math
import time
from pathlib import Path

import equinox as eqx

from firsthand.logs import read_log
from firsthand.plants.learned import LearnedPlant
from firsthand.robots.description import RobotDescription
from firsthand.robots.real_excavator import load_description
from firsthand.simulators import FitSettings, fit, fit_linear, open_loop
from firsthand.simulators.fit import make_untrained_plant
from firsthand.simulators.folder import save

LEARNED = ("pd_noisy", "pd_train")
JUDGED = ("pd_test", "learned_round2", "learned_round3_loaded")
EVERY = 20


def main() -> None:
    """Fit, judge, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--learned", nargs="+", default=LEARNED, choices=LEARNED)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rollout-steps", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    robot = load_description()
    spec = robot.make_task().spec
    settings = FitSettings(
        members=given.members,
        steps=given.steps,
        rollout_steps=given.rollout_steps,
        seed=given.seed,
        free=robot.free_entries,
    )
    logs = {name: read_log(given.folder / f"{name}.npz", spec, robot.columns) for name in (*given.learned, *JUDGED)}
    learned = [series for name in given.learned for series in logs[name].series]
    finished: list[LearnedPlant] = []
    if given.work is not None:
        given.work.mkdir(parents=True, exist_ok=True)
        like = make_untrained_plant(spec, learned, settings)
        while (file := given.work / f"network-{len(finished)}.eqx").exists():
            finished.append(eqx.tree_deserialise_leaves(file, like))
        print(f"{len(finished)} networks are done", flush=True)

    def keep(member: LearnedPlant) -> None:
        if given.work is not None:
            partial = given.work / "partial"
            eqx.tree_serialise_leaves(partial, member)
            partial.rename(given.work / f"network-{len(finished)}.eqx")
        finished.append(member)

    def show(phase: str, done: int, total: int, loss: float) -> None:
        print(f"{phase}: {done} of {total}, loss {loss:.4f}", flush=True)

    began = time.process_time()
    plant = fit(spec, learned, settings, progress=show, finished=tuple(finished), keep=keep)
    print(f"fitted in {(time.process_time() - began) / 60:.1f} minutes of processor time", flush=True)
    linear = fit_linear(spec, learned)
    accuracy = {name: open_loop(plant, logs[name].series, linear, every=EVERY) for name in JUDGED}
    for name, found in accuracy.items():
        for one in found:
            errors = ", ".join(
                f"{kind} {math.degrees(one.overall(kind)):.2f}" for kind in ("simulator", "linear", "constant_velocity")
            )
            joints = ", ".join(f"{math.degrees(value):.2f}" for value in one.simulator[:4])
            print(f"{name}, {one.seconds:g} s: {errors} degrees ({joints})", flush=True)
    data = [
        {
            "path": f"EfficientTrack/{name}",
            "sha256": logs[name].sha256,
            "rows": logs[name].usable,
            "refused": dict(logs[name].refused),
            "note": logs[name].note,
        }
        for name in given.learned
    ]
    save(
        given.out,
        plant,
        robot="real-excavator",
        description=RobotDescription.of(robot.make_task(), kind="machine"),
        data=data,
        settings=settings,
        accuracy=accuracy,
        logged_robot=robot,
    )


if __name__ == "__main__":
    main()
