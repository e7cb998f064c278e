"""The learner's process: sheeprl's DreamerV3 on a robot that is elsewhere. It runs in `.venv-dreamerv3`.

    python learner.py '{"overrides": […], "resume_from": null, "scratch": "…", "observation": 74, "action": 4,
                        "seed": 0, "step": 0}'

Requests go to standard output, answers come from standard input, and what sheeprl prints goes to standard error.
sheeprl calls its checkpoint callback at the end of every trajectory. There the robot's side may let the policy act on
test references, ask for a checkpoint, or just let it go on.
"""

# pyright: reportMissingImports=false

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported; the same numbers on any number of cores

import gymnasium
import numpy as np
import torch
from client import RobotClient
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from protocol import ACT, ACTED, ENDED, ON, SAVE, SAVED, Ended, Link, numbers
from sheeprl.algos.dreamer_v3_5.agent import build_agent
from sheeprl.cli import check_configs, resume_from_checkpoint, run_algorithm
from sheeprl.data.buffers import ReplayBuffer
from sheeprl.utils.callback import CheckpointCallback
from sheeprl.utils.utils import dotdict


class Session:
    """What the parts that sheeprl makes by name need to know; there is one per process."""

    link: Link
    request: "dict[str, Any]"
    config: Any
    counted_s: float
    """Processor time at the last moment up to which it has been counted, or that shall not count."""


def robot() -> RobotClient:
    """The environment; sheeprl calls this."""
    return _Seeded(Session.link, Session.request["observation"], Session.request["action"])


class _Seeded(RobotClient):
    """The first reset comes right before the loop, so this is where its random numbers begin."""

    _fresh = True

    def reset(self, **arguments: Any) -> "tuple[np.ndarray, dict]":
        if self._fresh:
            self._fresh = False
            Session.counted_s = time.process_time()
            seed(Session.request["step"])
        return super().reset(**arguments)


def seed(step: int) -> None:
    """Random numbers from here on. They depend on the step alone, so a continued run has the same ones."""
    torch.manual_seed(1_000_003 * (Session.request["seed"] + 1) + step)


class BetweenTrajectories(CheckpointCallback):
    """Called at the end of every trajectory, in the place of a checkpoint."""

    def on_checkpoint_coupled(self, fabric: Any, ckpt_path: str, state: "dict[str, Any]", replay_buffer: Any) -> None:
        """Tell the robot's side, and do what it asks for."""
        networks = ("world_model", "actor", "critic")
        facts = {
            "updates": state["per_rank_gradient_steps"],
            "parameters": sum(weight.numel() for name in networks for weight in state[name].values()),
            "computing_s": time.process_time() - Session.counted_s,
        }
        player = None
        try:
            Session.link.send(ENDED, json.dumps(facts))
            while True:
                kind, content = Session.link.receive(ACT, SAVE, ON)
                if kind == ON:
                    break
                if kind == ACT:
                    player = player or Player(fabric, state)
                    Session.link.send(ACTED, player.act(numbers(content, 1 + Session.request["observation"])))
                if kind == SAVE:
                    folder = Path(content.decode())
                    (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
                    shutil.copy(Path(ckpt_path).parent.parent / "config.yaml", folder)
                    path = folder / "checkpoint" / Path(ckpt_path).name
                    super().on_checkpoint_coupled(fabric, str(path), state, replay_buffer)
                    Session.link.send(SAVED, str(path))
        except Ended as error:
            raise SystemExit(f"DreamerV3 stops: {error}.") from error
        Session.counted_s = time.process_time()  # tests and checkpoints are not the learner's work
        seed(state["iter_num"])


class Player:
    """The policy as it is now, for any number of robots.

    It draws its actions, as in training: so DreamerV3 is evaluated by its authors and by sheeprl, and the mean is not
    what it was optimised for. The random numbers are the same in every test.
    """

    def __init__(self, fabric: Any, state: "dict[str, Any]") -> None:
        size, actions = Session.request["observation"], Session.request["action"]
        space = gymnasium.spaces.Dict({"state": gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)})
        weights = state["world_model"], state["actor"]
        self._player = build_agent(fabric, (actions,), True, Session.config, space, *weights)[-1]
        self._player.num_envs = 0
        seed(0)

    @torch.no_grad()
    def act(self, rows: np.ndarray) -> np.ndarray:
        """Actions; a row is whether the robot's trajectory begins, and what it sees."""
        player, first = self._player, np.flatnonzero(rows[:, 0])
        if player.num_envs != len(rows):
            player.num_envs = len(rows)
            player.init_states()
        elif len(first):
            player.init_states(first.tolist())
        seen = torch.from_numpy(rows[None, :, 1:].copy())
        return torch.cat(player.get_actions({"state": seen}, greedy=False), -1)[0].numpy()


def keep_queue() -> None:
    """Let a loaded replay know which steps have not been learned from yet.

    sheeprl forgets it, because its checkpoints may cut an episode. Ours do not, and a continued run shall not differ.
    """
    forgetful = ReplayBuffer.__setstate__

    def load(self: ReplayBuffer, state: "dict[str, Any]") -> None:
        queue = {name: state[name] for name in ("_online_origin", "_online_next")}
        forgetful(self, state)
        self.__dict__.update(queue)

    ReplayBuffer.__setstate__ = load


def main() -> None:
    """Learn until sheeprl has made its steps."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    request = json.loads(sys.argv[1])
    Session.link, Session.request = Link(source, sink), request
    with initialize_config_module("sheeprl.configs", version_base="1.3"):
        config = compose("config", overrides=request["overrides"])
    if request["resume_from"]:
        config.checkpoint.resume_from = request["resume_from"]
        config = resume_from_checkpoint(config)
    config.log_root = request["scratch"]  # after sheeprl has taken over what an earlier process had: folders may move
    config = dotdict(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    check_configs(config)
    Session.config = config
    keep_queue()
    run_algorithm(config)


if __name__ == "__main__":
    # sheeprl finds the robot and the callback by the name of this module.
    sys.modules["learner"] = sys.modules["__main__"]
    main()
