"""What error is possible: the fast preset's policy class, given the plant's whole state, improved on the plant itself.

    python benchmarks/informed_oracle.py --robot excavator-realistic --minutes 50

Begins with the policy that the fast preset has after some episodes with exact sensors, then takes Gauss–Newton steps
with exact derivatives until the error on held-out references no longer improves. The folder `--work` holds everything:
the same command goes on where it was stopped. What came out goes to benchmarks/results/oracle/ROBOT.json.
"""

import argparse
import io
import json
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import firsthand as fh
from firsthand.evaluation.informed import (
    Chains,
    InformedPolicy,
    Loop,
    compiled_follow,
    follow_shapes,
    held_out_errors,
    improve,
)
from firsthand.models import Policy
from firsthand.runs import atomic
from firsthand.training import Trainer, TrainingConfig

RESULTS = Path(__file__).parent / "results" / "oracle"
LOWEST, HIGHEST = 1e-5, 1e2
"""Range of the damping."""
EVERY = 10
"""Steps between two looks at held-out references."""
PATIENCE = 5
"""Looks without an improvement of one percent after which it ends."""
AVERAGED = 0.95
"""The policy that is judged is a running mean: steps on random batches scatter around what they converge to."""


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Whole or not at all."""
    data = io.BytesIO()
    np.savez(data, **arrays)  # pyright: ignore[reportArgumentType]
    atomic.write_bytes(path, data.getvalue())


def first_policy(robot_name: str, episodes: int, seed: int, path: Path) -> Policy:
    """What the fast preset has after a few episodes with exact sensors."""
    robot = fh.make_robot(robot_name, seed=seed, sensors="exact")
    if not path.exists():
        config = TrainingConfig.of(robot_name, "fast", episodes=episodes, seed=seed, sensors="exact")
        trainer = Trainer(robot, config, keep_going=True)
        for _ in range(episodes):
            print(f"first policy: {100 * trainer.run_episode().metrics['tracking_error']:.2f} cm", flush=True)
        write_arrays(path, trainer.state.controller.policy.arrays())
    with np.load(path) as arrays:
        return Policy.from_arrays(robot.task.spec, arrays)


def main() -> None:
    """Improve until nothing improves, then write what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--robot", default="excavator-realistic")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--minutes", type=float, default=50.0, help="processor time, at most")
    parser.add_argument("--batch", type=int, default=40, help="trajectories per step")
    parser.add_argument("--iterations", type=int, default=40, help="conjugate gradients per step")
    parser.add_argument("--start-episodes", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    work = given.work or Path("runs") / f"oracle-{given.robot}-{given.seed}"
    work.mkdir(parents=True, exist_ok=True)
    start = first_policy(given.robot, given.start_episodes, given.seed, work / "start.npz")

    robot = fh.make_robot(given.robot, seed=given.seed, sensors="exact")
    assert robot.plant is not None
    loop = Loop.of(robot.plant, robot.task)
    chains, policy = Chains(loop, given.batch, given.seed), InformedPolicy.of(start, loop.size)
    visited = []
    for number in range(4):  # away from home, and the scales of the state
        followed = compiled_follow(loop, policy, chains.draw(number))
        visited.append(np.asarray(followed.states).reshape(-1, loop.size))
        chains.advance(followed.ends)
    loop = loop.standardise(np.concatenate(visited))
    chains.loop = loop
    flat, unravel = ravel_pytree(policy)
    mean, direction, damping = flat, jnp.zeros_like(flat), jnp.asarray(1e-3)
    step, spent, looks, best = 0, 0.0, [], flat
    stored = work / "state.npz"
    if stored.exists():
        with np.load(stored) as arrays:
            flat, mean, best, direction = (jnp.asarray(arrays[name]) for name in ("flat", "mean", "best", "direction"))
            loop = loop.standardise(arrays["visited"]) if "visited" in arrays else loop
            damping, step, spent = jnp.asarray(arrays["damping"]), int(arrays["step"]), float(arrays["spent"])
            chains.states, chains.registers = arrays["states"], arrays["registers"]
            chains.loop = loop
        chains.rng = np.random.default_rng([given.seed, step])
        looks = json.loads((work / "looks.json").read_text())
        print(f"going on after {step} steps, {spent:.0f} s", flush=True)

    def look() -> dict[str, float]:
        judged = unravel(mean)
        errors, shapes = held_out_errors(loop, judged), follow_shapes(loop, judged).overall
        return {
            "step": step,
            "random": 100 * float(np.mean(errors)),
            "random_worst": 100 * max(errors),
            "shapes": 100 * shapes.mean_error,
            "shapes_max": 100 * shapes.max_error,
        }

    if not looks:
        looks = [look()]
        print(looks[-1], flush=True)
    began, before = time.process_time(), spent
    while spent < 60 * given.minutes and not finished(looks):
        batch = chains.draw(1000 + step)
        found = improve(loop, unravel(flat), batch, damping, 0.9 * direction, given.iterations)
        keep = bool(found.after < found.before)
        damping = jnp.clip(damping * (0.7 if keep else 4.0), LOWEST, HIGHEST)
        direction = found.direction if keep else jnp.zeros_like(direction)
        if keep:
            flat = ravel_pytree(found.policy)[0]
            mean = AVERAGED * mean + (1 - AVERAGED) * flat if step >= EVERY else flat
        chains.advance(found.followed.ends, restart=0.05)
        step, spent = step + 1, before + time.process_time() - began
        costs = f"cost {float(found.before):.3e} -> {float(found.after):.3e}"
        print(f"{step}: {costs}, damping {float(damping):.1e}, {spent:.0f} s", flush=True)
        if step % EVERY == 0:
            looks.append(look())
            print({name: round(value, 3) for name, value in looks[-1].items()}, flush=True)
            if looks[-1]["random"] <= min(each["random"] for each in looks):
                best = mean
        state = {"flat": flat, "mean": mean, "best": best, "direction": direction, "damping": damping}
        write_arrays(
            stored,
            {
                **{name: np.asarray(value) for name, value in state.items()},
                "step": np.asarray(step),
                "spent": np.asarray(spent),
                "states": chains.states,
                "registers": chains.registers,
                "visited": np.concatenate(visited),
            },
        )
        atomic.write_json(work / "looks.json", looks)
    mean = best
    result = look()
    evaluation = follow_shapes(loop, unravel(best))
    result = {
        "robot": given.robot,
        "start_episodes": given.start_episodes,
        "seed": given.seed,
        "steps": step,
        "cpu_minutes": spent / 60,
        "ended": "no improvement" if finished(looks) else "time",
        "unit": "cm",
        **{name: value for name, value in result.items() if name != "step"},
        "shapes_each": {
            r.name: 100 * m.mean_error for r, m in zip(evaluation.references, evaluation.metrics, strict=True)
        },
        "looks": looks,
    }
    out = given.out or RESULTS / f"{given.robot}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_json(out, result)
    print(json.dumps({name: value for name, value in result.items() if name != "looks"}, indent=1))


def finished(looks: list[dict[str, float]]) -> bool:
    """Whether the last looks have brought no improvement of one percent."""
    errors = [each["random"] for each in looks]
    return len(errors) > PATIENCE and min(errors[-PATIENCE:]) > 0.99 * min(errors[:-PATIENCE])


if __name__ == "__main__":
    main()
