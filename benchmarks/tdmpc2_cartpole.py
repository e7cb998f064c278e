"""TD-MPC2 on a task of its authors: dm_control's cartpole swing-up, with action repeat 2.

    python benchmarks/tdmpc2_cartpole.py [--out FOLDER] [--setting default] [--seed 1] [--steps 50000]

Needs the extra `peers`. Steps are environment steps: two per decision, 1000 per episode. An interrupted run goes on
from its last checkpoint when the same command is given again. FOLDER gets `returns.csv` (a line per episode) and
`summary.json`.
"""

import argparse
import csv
import io
import json
import os
import sys
import time
from pathlib import Path

# One thread, as the figures that it is compared with; nothing is rendered.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MUJOCO_GL", "disabled")

import numpy as np

from firsthand.runs import atomic, packed
from firsthand_lab.baselines import tdmpc2

try:
    from dm_control import suite
except ImportError:
    sys.exit("cartpole needs dm_control: run `make peers` first.")

REPEAT = 2
EPISODE = 1000
"""Environment steps per episode."""
WANTED = 700.0
CHECKPOINT_EPISODES = 4
COLUMNS = ("episode", "environment_steps", "updates", "return", "wall_s", "cpu_s", "explore")


class Cartpole:
    """cartpole-swingup with each action held for two control steps of 10 ms; every episode has a seed of its own."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def reset(self, episode: int) -> np.ndarray:
        seed = int(np.random.SeedSequence([self.seed, episode]).generate_state(1)[0])
        self._environment = suite.load("cartpole", "swingup", task_kwargs={"random": seed})
        return self._observation(self._environment.reset())

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float]:
        reward = 0.0
        for _ in range(REPEAT):
            step = self._environment.step(action)
            reward += float(step.reward or 0.0)
        return self._observation(step), reward

    @staticmethod
    def _observation(step) -> np.ndarray:
        return np.concatenate([np.ravel(v) for v in step.observation.values()]).astype(np.float32)


def run_episode(agent: tdmpc2.Agent, environment: Cartpole, episode: int, *, explore: bool) -> float:
    """The return of an episode; when exploring, the agent remembers and learns."""
    observation, total = environment.reset(episode), 0.0
    decisions = EPISODE // REPEAT
    for t in range(decisions):
        action = agent.act(observation, first=t == 0, explore=explore)
        following, reward = environment.step(action)
        if explore:
            agent.remember(observation, action, reward, following, first=t == 0, last=t == decisions - 1)
            agent.learn(agent.due)
        observation, total = following, total + reward
    return total


def clock(seconds: float) -> str:
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02d} h"


def write_results(out: Path, rows: list[dict], arguments: argparse.Namespace, agent: tdmpc2.Agent) -> dict:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    atomic.write_text(out / "returns.csv", text.getvalue())
    learned = [r for r in rows if r["explore"]]
    tested = [r["return"] for r in rows if not r["explore"]]
    reached = next((r["environment_steps"] for r in learned if r["return"] >= WANTED), None)
    summary = {
        "task": "dm_control cartpole-swingup, action repeat 2",
        "setting": arguments.setting,
        "seed": arguments.seed,
        "parameters": agent.parameters,
        "environment_steps": learned[-1]["environment_steps"] if learned else 0,
        "updates": agent.updates,
        "first_return_of_700_at": reached,
        "mean_return_of_last_5_episodes": float(np.mean([r["return"] for r in learned[-5:]])) if learned else None,
        "returns_without_exploration": tested,
        "wall_s": round(rows[-1]["wall_s"]) if rows else 0,
        "cpu_s": round(rows[-1]["cpu_s"]) if rows else 0,
    }
    atomic.write_json(out / "summary.json", summary)
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("experiments/cartpole"))
    parser.add_argument("--checkpoint", type=Path, help="default: OUT/checkpoint.safetensors")
    parser.add_argument("--setting", choices=("default", "official_smallest", "reduced"), default="default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--tests", type=int, default=3, help="episodes without exploration at the end")
    arguments = parser.parse_args()
    out = arguments.out
    checkpoint = arguments.checkpoint or out / "checkpoint.safetensors"
    atomic.make_folder(out)

    environment = Cartpole(arguments.seed)
    config = getattr(tdmpc2, arguments.setting)()
    size = len(environment.reset(0))
    agent = tdmpc2.Agent(config, size, 1, seed=arguments.seed, episode_length=EPISODE // REPEAT)
    rows: list[dict] = []
    if checkpoint.exists():
        arrays, info = packed.unpack(checkpoint.read_bytes())
        for name in ("setting", "seed"):
            if info[name] != getattr(arguments, name):
                parser.error(f"{checkpoint} is of the {name} {info[name]}, not {getattr(arguments, name)}")
        agent.restore(arrays)
        rows = [row for row in info["rows"] if row["explore"]]  # a longer run is tested again at its end
        print(f"going on after {len(rows)} episodes", flush=True)

    wall_before, cpu_before = (rows[-1]["wall_s"], rows[-1]["cpu_s"]) if rows else (0.0, 0.0)
    wall, cpu = time.perf_counter() - wall_before, time.process_time() - cpu_before
    episodes = arguments.steps // EPISODE
    for episode in range(len(rows), episodes + arguments.tests):
        explore = episode < episodes
        total = run_episode(agent, environment, episode, explore=explore)
        rows.append(
            {
                "episode": episode,
                "environment_steps": REPEAT * agent.steps,
                "updates": agent.updates,
                "return": round(total, 2),
                "wall_s": round(time.perf_counter() - wall, 1),
                "cpu_s": round(time.process_time() - cpu, 1),
                "explore": int(explore),
            }
        )
        # The seed episodes cost next to nothing and say nothing about the time left.
        recent = [r["wall_s"] for r in rows[-6:] if r["updates"]]
        pace = (recent[-1] - recent[0]) / (len(recent) - 1) if len(recent) > 1 else float("nan")
        left = clock(pace * (episodes + arguments.tests - 1 - episode)) if pace == pace else "not known yet"
        print(
            f"episode {episode + 1}/{episodes + arguments.tests}  {REPEAT * agent.steps} steps  return {total:.0f}"
            f"{'' if explore else ' (no exploration)'}  {clock(rows[-1]['wall_s'])} so far, left: {left}",
            flush=True,
        )
        write_results(out, rows, arguments, agent)
        if explore and ((episode + 1) % CHECKPOINT_EPISODES == 0 or episode == episodes - 1):
            info = {"setting": arguments.setting, "seed": arguments.seed, "rows": rows}
            atomic.write_bytes(checkpoint, packed.pack(agent.snapshot(), info))
    print(json.dumps(write_results(out, rows, arguments, agent), indent=2))


if __name__ == "__main__":
    main()
