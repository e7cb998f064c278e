"""A run, finished or still going on, read from its folder. Reading needs neither the robot nor its code."""

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firsthand_onboard.base_control import SHARED_ARRAYS, BaseControl, ForeignBase, ReferenceBase, base_arrays
from firsthand_onboard.observer import ObserverParameters, ObserverSettings

from ..console import notify
from ..errors import UserError
from ..evaluation import Evaluation, evaluate
from ..evaluation.oracle import OracleResult
from ..models import Controller, Observer
from ..robots import AbstractRobot, EpisodeRecord
from ..robots.base_file import load_function_base
from ..robots.description import RobotDescription, spec_difference
from ..robots.earned import is_earned
from ..robots.registry import NamedRobot, find_robot
from ..robots.user_file import robot_file_notes
from ..runs import RunFolder, atomic
from ..tasks.base import EvaluationReference
from .bases import FILE as BASE_FILE
from .bases import Base
from .config import TrainingConfig

CHECKPOINT_POLICY = "learner.policy.layers."
"""How the names of the policy's arrays begin in a checkpoint."""
CHECKPOINT_CONTROL = "learner.policy.control."
"""How the names of what belongs to its base begin."""
CHECKPOINT_ESTIMATION = "learner.estimation."
"""How the names of what belongs to the observer begin."""


@dataclass(frozen=True)
class StoredEvaluation:
    """How a policy followed the evaluation references, as the run keeps it."""

    evaluation: Evaluation
    """The robot's trajectories, and the metrics."""
    oracle: OracleResult | None
    """The oracle's error there, where it is known."""


@dataclass(frozen=True)
class Run:
    """A run, read from its folder. `Run.open(path)` reads a run that is finished or still going on."""

    folder: RunFolder
    """The folder, opened for reading."""
    config: TrainingConfig
    """How the run was made."""
    description: RobotDescription
    """The robot as it was when the run was started."""

    @staticmethod
    def open(path: str | Path) -> "Run":
        """Open a run for reading."""
        folder = RunFolder.open(Path(path))
        where = str(folder.path / "config.json")
        config = TrainingConfig.from_dict(folder.config, where)
        return Run(folder, config, RobotDescription.of_config(folder.config, where))

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per episode."""
        return self.folder.read_metrics()

    def episodes(self) -> list[int]:
        """Which episodes are stored, counted from 1."""
        return self.folder.episodes()

    def record(self, episode: int) -> EpisodeRecord:
        """The robot's trajectories in an episode."""
        arrays = self._episode(episode)
        with self._report_damage(f"episode {episode}"):
            record = EpisodeRecord.from_arrays(arrays)
            record.check(self.description.spec)
        return record

    def policy(self, episode: int) -> Controller:
        """The policy that ran an episode, with its observer where it had one."""
        return self._policy(self._episode(episode), f"episode {episode}")

    def kept_policy(self) -> Controller:
        """The best policy that the robot has proven, with its observer where it had one."""
        best = self.folder.load_best()
        if best is None and not self.episodes():
            raise UserError(f"{self.path} has no finished episode yet.")
        if best is None:
            raise UserError(f"no episode of {self.path} has proven a policy yet; give --episode, or evaluate --newest.")
        return self._policy(best[0], "best.safetensors")

    def kept_episode(self) -> int | None:
        """The episode that the kept policy ran; None while there is none."""
        best = self.folder.load_best()
        with self._report_damage("best.safetensors"):
            return None if best is None else int(best[1]["episode"])

    def newest_policy(self) -> Controller:
        """The result of the last update, which has not run on the robot yet."""
        if not self.folder.checkpoints():
            raise UserError(f"{self.path} has no finished episode yet.")
        checkpoint = self.folder.load_checkpoint()
        for note in checkpoint.notes:
            notify(note)
        where = f"the checkpoint of episode {checkpoint.episode}"
        with self._report_damage(where):
            return self._policy(self._newest_arrays(checkpoint.arrays), where)

    def _newest_arrays(self, stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Policy and observer of a checkpoint as named arrays."""

        def layers(prefix: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for i in itertools.count():
                if f"{prefix}{i}.0" not in stored:
                    return
                yield stored[f"{prefix}{i}.0"], stored[f"{prefix}{i}.1"]

        named = {}
        for i, (weight, bias) in enumerate(layers(CHECKPOINT_POLICY)):
            named[f"policy.{i}.weight"], named[f"policy.{i}.bias"] = weight, bias
        if self.config.base is not None:
            chosen = [stored[f"{CHECKPOINT_CONTROL}{name}"] for name in ("authority", "error_limit")]
            outer = base_arrays(BaseControl(ReferenceBase(), *chosen))
            if self.config.base.mode == "add":
                outer = {**self.folder.load_data(BASE_FILE)[0], **{name: outer[name] for name in SHARED_ARRAYS}}
            named |= outer
        if not stored.get(f"{CHECKPOINT_ESTIMATION}active", False):
            return named
        prefix, chosen = f"{CHECKPOINT_ESTIMATION}observer.parameters.", self.config.settings.observer
        rest = (stored[prefix + name] for name in ("change_scale", "gain", "taps", "scale"))
        parameters = ObserverParameters(tuple(layers(f"{prefix}layers.")), *rest)
        limits = ObserverSettings.of(self.description.spec, clip=chosen.clip, restart_after=chosen.restart_after)
        return named | Observer(parameters, limits, self.description.spec).arrays()

    # Evaluations: made where the robot is at hand, read anywhere.

    def evaluation(self, episode: int) -> StoredEvaluation | None:
        """How the policy of an episode followed the evaluation references; None where that was not measured."""
        stored = self.folder.load_evaluation(episode)
        if stored is None:
            return None
        arrays, info = stored
        if info.get("policy_sha256") != policy_digest(self._episode(episode)):
            return None  # the episode was done again since
        with self._report_damage(f"the evaluation of episode {episode}"):
            return self._read_evaluation(arrays, info)

    def save_evaluation(self, episode: int, evaluation: Evaluation, oracle: OracleResult | None = None) -> None:
        """Keep how the policy of an episode followed the evaluation references."""
        arrays: dict[str, np.ndarray] = {}
        for i, (reference, record) in enumerate(zip(evaluation.references, evaluation.records, strict=True)):
            arrays |= {f"{i}.{name}": array for name, array in record.arrays().items()}
            arrays |= {f"{i}.points": np.asarray(reference.points), f"{i}.start": np.asarray(reference.start)}
        info = {
            "names": [reference.name for reference in evaluation.references],
            "policy_sha256": policy_digest(self._episode(episode)),
            "oracle": None if oracle is None else asdict(oracle),
            **({"costs": list(evaluation.costs)} if evaluation.costs else {}),
        }
        self.folder.save_evaluation(episode, arrays, info)

    def _read_evaluation(self, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> StoredEvaluation:
        references, records = [], []
        for i, name in enumerate(info["names"]):
            own = {key.removeprefix(f"{i}."): array for key, array in arrays.items() if key.startswith(f"{i}.")}
            references.append(EvaluationReference(str(name), own["points"], own["start"]))
            records.append(EpisodeRecord.from_arrays(own))
            records[-1].check(self.description.spec)
        oracle = None if info["oracle"] is None else OracleResult(**info["oracle"])
        costs = tuple(float("nan") if cost is None else float(cost) for cost in info.get("costs", ()))
        if costs and len(costs) != len(references):
            raise ValueError(f"it has {len(costs)} costs, but {len(references)} references")
        made = Evaluation.of(self.description.spec, tuple(references), tuple(records), costs)
        return StoredEvaluation(made, oracle)

    # With the robot at hand.

    def evaluate(self, robot: AbstractRobot, episode: int, oracle: OracleResult | None = None) -> Evaluation:
        """Let the robot follow the evaluation references with the policy of an episode, and keep what came out."""
        result = evaluate(robot, self.runnable(self.policy(episode)))
        self.save_evaluation(episode, result, oracle)
        return result

    def runnable(self, controller: Controller) -> Controller:
        """The same with the function of the user's file in place, where the run's base is one.

        Reading a run does not run that file; this does, if the user has allowed it.
        """
        control = controller.policy.control
        if control is None or not isinstance(control.base, ForeignBase) or self.config.base is None:
            return controller
        control = control._replace(base=load_function_base(self.config.base.name, self.description.spec))
        return dataclasses.replace(controller, policy=dataclasses.replace(controller.policy, control=control))

    def find_robot(self) -> NamedRobot:
        """The run's own robot. Its file is run if this user has allowed that; `UserError` otherwise."""
        file = self.description.file
        if file is not None and not Path(file.path).is_file():
            raise UserError(
                f"The robot of {self.path} is in {file.path}, which does not exist any more; name it where it is now: "
                "--robot FILE.py:NAME."
            )
        return self.as_driven(find_robot(self.config.robot, sensors=self.config.sensors))

    def as_driven(self, found: NamedRobot) -> NamedRobot:
        """The robot as the run's policy drives it: with the base inside, where the policy moves its target."""
        origin = self.config.base
        if origin is None or origin.mode != "target":
            return found
        return Base.of_run(self.folder, origin, found.task.spec).put_inside(found)

    def make_robot(self, found: NamedRobot) -> AbstractRobot:
        """The robot that was found, as the run's: with its payload, and on a machine with the range that it has earned.

        It must have the control specification with which the run was made.
        """
        if difference := spec_difference(self.description.spec, found.task.spec):
            raise UserError(f"the policy of {self.path} cannot run on {found.name}: {difference}.")
        for note in robot_file_notes(self.description.file, found.file):
            notify(note)
        robot = found.make(payload_kg=self.config.payload_kg, seed=self.config.seed)
        if robot.has_authority:
            robot.authority = self.earned_authority(robot)
        return robot

    def earned_authority(self, robot: AbstractRobot) -> float:
        """Share of the command range that the last episode used on this machine; what it has now where that is another
        machine, or somebody else's run.
        """
        rows = self.metrics()
        earned = bool(rows) and is_earned(rows[-1], robot.machine_id, self.folder.identity)
        return float(rows[-1]["authority"]) if earned else robot.authority

    # Inside.

    def _episode(self, episode: int) -> dict[str, Any]:
        known = self.episodes()
        if episode not in known:
            held = f"{known[0]} to {known[-1]}" if known else "none yet"
            raise UserError(f"episode is {episode}, but {self.path} holds episodes {held}.")
        return self.folder.load_episode(episode)[0]

    def _policy(self, arrays: Mapping[str, np.ndarray], where: str) -> Controller:
        spec = self.description.spec
        sizes = (spec.observation_size, *spec.policy.hidden, spec.layout.num_commands)
        with self._report_damage(where):
            for i, (width, after) in enumerate(itertools.pairwise(sizes)):
                for name, shape in ((f"policy.{i}.weight", (after, width)), (f"policy.{i}.bias", (after,))):
                    if arrays[name].shape != shape:
                        raise ValueError(f"{name} has the shape {arrays[name].shape}, but must have {shape}")
            check_policy_types(arrays)
            return Controller.from_arrays(spec, arrays)

    @contextlib.contextmanager
    def _report_damage(self, where: str) -> Iterator[None]:
        """One sentence where a file's content does not fit the robot."""
        with atomic.using(f"{where} of {self.path}"):
            yield


def check_policy_types(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise `ValueError` where a policy or an observer is not made of real numbers."""
    for name, array in arrays.items():
        if name.startswith(("policy.", "observer.", "base.")) and array.dtype.kind not in "fiub":
            raise ValueError(f"{name} has the type {array.dtype}, but must hold real numbers")


def policy_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of policy and observer among named arrays."""
    digest = hashlib.sha256()
    for name in sorted(name for name in arrays if name.startswith(("policy.", "observer.", "base."))):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()
