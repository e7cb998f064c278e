"""Run in a process of its own on one core: three episodes over the link, the same in process, the compiled simulation.

In the third the policy has an observer. Between the episodes the machine goes home, there and here.
"""

import dataclasses
import json
import sys

import numpy as np

from firsthand.models import Controller, Observer
from firsthand.robots import EpisodeRecord
from firsthand.robots.onboard import ExecutorRobot, OnboardRobot
from firsthand.robots.registry import make_robot, make_task
from firsthand.robots.remote import RemoteRobot, disconnect
from firsthand.robots.simulated_machine import LockStepMachine, make_plant
from firsthand.runs.pytrees import to_arrays
from firsthand.training import Trainer, TrainingConfig
from firsthand.training.guard import Guard
from firsthand.training.judgement import GuardSettings
from firsthand.training.learning import smooth_excitation
from firsthand_onboard.gate_limits import GateLimits
from firsthand_onboard.homing import Homing


def learned(robot: OnboardRobot, config: TrainingConfig) -> dict[str, np.ndarray]:
    """Everything that two episodes leave behind, and an episode with an observer."""
    trainer = Trainer(robot, config, supervisor=Guard(robot.task, GuardSettings(authority=0.3)))
    found = {}
    for _ in range(2):
        summary = trainer.run_episode()
        found.update({f"{summary.episode}.{name}": array for name, array in summary.record.arrays().items()})
    found.update({f"3.{name}": array for name, array in observed(robot, trainer).arrays().items()})
    return {**found, **to_arrays({"learner": trainer.state})}


def observed(robot: OnboardRobot, trainer: Trainer) -> EpisodeRecord:
    """Two trajectories with an observer that is slower than the register, clips much and restarts."""
    register = Observer.register(trainer.state.dynamics)
    scale = 3e-3 * np.asarray(robot.task.spec.scales.change_scale)
    parameters = register.parameters._replace(gain=0.5 * register.parameters.gain, scale=scale)
    observer = dataclasses.replace(register, parameters=parameters)
    goals = robot.task.sample_goals(np.random.default_rng(1), robot.measured(), 2)
    return robot.run_episode(Controller(trainer.state.policy, observer), goals)


def first_episode(config: TrainingConfig, machine: LockStepMachine) -> tuple[EpisodeRecord, EpisodeRecord]:
    """By the compiled simulation, and by the numpy executor with nothing but the range in its gate."""
    task = make_task(config.robot)
    machine.reset(np.asarray(task.home))
    robots = make_robot("excavator", task), ExecutorRobot(machine, task, GateLimits.wide(task.spec))
    policy = Trainer(robots[0], config).state.policy
    rng = np.random.default_rng(0)
    goals = task.sample_goals(rng, robots[0].measured(), task.trajectories)
    excitation = smooth_excitation(task, config.settings.excitation, rng)
    first, second = (robot.run_episode(policy, goals, excitation) for robot in robots)
    return first, second


def main(address: str) -> None:
    """Print what differs."""
    config = TrainingConfig.of("excavator", "paper", episodes=6, changes={"model.steps": 20})
    task = make_task(config.robot)
    over_link = learned(RemoteRobot(address, task), config)
    disconnect(address)
    machine = LockStepMachine(make_plant("excavator"))
    homing = Homing.from_json(json.dumps(machine.homing))
    in_process = learned(ExecutorRobot(machine, task, homing=homing), config)
    home = np.abs(in_process["2.measured"][0, 0, list(task.spec.layout.position)] - np.asarray(task.home))
    compiled, executed = (record.arrays() for record in first_episode(config, machine))
    names = ("starts", "measured", "commands", "references")
    print(
        json.dumps(
            {
                "arrays": len(over_link),
                "different": [n for n in over_link if over_link[n].tobytes() != in_process[n].tobytes()],
                "free_share": float(over_link["1.free"].mean()),
                "restarts": float(over_link["3.restarts"].sum()),
                "estimated": float(np.abs(over_link["3.starts"][1, :8] - over_link["3.measured"][1, 0]).max()),
                "all_valid": bool(over_link["2.valid"].all()),
                "from_home": float(home.max()),
                "farthest": max(float(np.abs(compiled[n] - executed[n]).max()) for n in names),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
