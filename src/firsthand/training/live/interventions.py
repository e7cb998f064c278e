"""Changes that people may ask for between two episodes: payload, kept checkpoints, an earlier policy or learner."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from ...agent import LearnerState
from ...control import files
from ...control.files import Event, Request
from ...errors import UserError
from ...robots import AbstractRobot
from ...runs import atomic
from ...runs.packed import DamagedFile, unpack
from ..bases import on_base_of
from ..config import TrainingConfig
from ..learning import with_policy
from ..parts import AbstractRecorder, Checkpoint, Outcome
from ..recorder import checkpoint_from_arrays

KEPT_FOLDER = "kept"
"""The run's folder for checkpoints that a person wants to stay."""


class EventLog:
    """Marks for the run's curves. A mark that cannot be written is left out: it must not stop a robot."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def add(self, episode: int, kind: str, text: str, extra: dict[str, Any] | None = None) -> None:
        """Mark the curves from this episode on."""
        with contextlib.suppress(OSError):
            files.append_event(self.run, Event(episode, kind, text, extra or {}))


class Interventions:
    """Carries out requests between two episodes, in the trainer's thread."""

    def __init__(
        self, run: Path, events: EventLog, recorder: AbstractRecorder, robot: AbstractRobot, config: TrainingConfig
    ) -> None:
        self.run, self.events, self.recorder, self.robot, self.config = run, events, recorder, robot, config
        self.payload = ""
        """The tag that episodes are marked with."""

    def carry_out(self, request: Request, learner: LearnerState, episode: int) -> Outcome:
        """Do it; `UserError` where it cannot be done."""
        match request.kind:
            case "payload":
                return Outcome(self.set_payload(str(request.value).strip()))
            case "checkpoint":
                return self._keep_checkpoint(episode)
            case "return":
                return self._return_to(int(request.value or 0), learner, episode)
            case "restore":
                return self._restore(int(request.value or 0), learner)
        raise UserError(f"{request.kind} cannot be done between episodes.")

    def mark(self, request: Request, episode: int) -> None:
        """Mark the curves with a request that was carried out after this episode."""
        match request.kind:
            case "payload":
                self.events.add(episode + 1, "payload", f"payload {self.payload}", {"tag": self.payload})
            case "checkpoint":
                self.events.add(episode, "checkpoint", f"checkpoint of episode {episode} kept")
            case "return":
                self.events.add(episode + 1, "return", f"back to the policy of episode {request.value}")
            case "restore":
                self.events.add(episode + 1, "restore", f"back to the checkpoint after episode {request.value}")

    def resume_payload(self) -> None:
        """Restore the last payload of an earlier session."""
        payloads = [event for event in files.read_events(self.run) if event.kind == "payload"]
        if payloads:
            self.set_payload(str(payloads[-1].extra.get("tag", "")))

    def set_payload(self, tag: str) -> str:
        """Mark episodes with a tag; where it is a weight, a simulated robot carries it. Returns the answer."""
        text, weight = f"episodes are now marked with {tag}", _kilograms(tag)
        if weight is not None and self.robot.plant is not None:
            dataclasses.replace(self.config, payload_kg=weight)  # refuses what no run may have
            self.robot.set_payload(weight)
            tag = f"{weight:g} kg"
            text = f"the simulated robot now carries {tag}"
        self.payload = tag
        return text

    def _keep_checkpoint(self, episode: int) -> Outcome:
        path = self.run / "checkpoints" / f"{episode:06d}.safetensors"
        try:
            data = atomic.read_bytes(path)
        except OSError:
            raise UserError("there is no finished episode yet, so there is nothing to keep.") from None
        atomic.make_own_folder(self.run / KEPT_FOLDER)
        atomic.write_bytes(self.run / KEPT_FOLDER / path.name, data)
        return Outcome(f"the checkpoint after episode {episode} stays in {KEPT_FOLDER}/{path.name}")

    def _return_to(self, earlier: int, learner: LearnerState, episode: int) -> Outcome:
        policy = on_base_of(self.recorder.load_policy(earlier, self.robot.task.spec), learner.policy)
        answer = f"episode {episode + 1} runs the policy of episode {earlier}"
        return Outcome(answer, with_policy(learner, policy), policy)

    def _restore(self, episode: int, learner: LearnerState) -> Outcome:
        path = self.run / KEPT_FOLDER / f"{episode:06d}.safetensors"
        try:
            arrays, _ = unpack(atomic.read_bytes(path))
            with atomic.using(str(path)):
                kept = checkpoint_from_arrays(Checkpoint(learner, self.robot.snapshot()), arrays)
        except OSError as error:
            raise UserError(f"cannot read {path}: {atomic.cause(error)}.") from None
        except DamagedFile as error:
            raise UserError(f"{path} is damaged: {error}.") from None
        policy = kept.operators_policy or kept.learner.controller
        answer = f"model and policy are those after episode {episode}"
        return Outcome(answer, with_policy(kept.learner, policy), kept.operators_policy)


def _kilograms(tag: str) -> float | None:
    try:
        return float(tag.removesuffix("kg"))
    except ValueError:
        return None
