"""The trainer's side of the control folder: pause, stop, approve, payload, checkpoints and earlier policies.

A callback and a small thread. The thread reads requests and says every half second that the trainer lives; whatever
touches the learner or the robot happens in the trainer's own thread, between trajectories or episodes. A second thread
speaks to the machine, if there is one, as its operator.
"""

import contextlib
import dataclasses
import os
import secrets
import socket
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from firsthand_onboard.timing import since_boot

from ..control import files
from ..control.files import Event, Request, Status
from ..control.machine import ANSWERED_S, Watch
from ..errors import UserError
from ..runs import atomic
from ..runs.packed import DamagedFile, unpack
from ..runs.pytrees import from_arrays
from .callbacks import Callback, EpisodeAbandoned, EpisodeSummary
from .display import say
from .loop import policy_from_arrays

EVERY_S = 0.2
"""How often requests are looked for."""
BEAT_S = 0.5
"""How often the trainer says that it lives."""
AWAY_S = 10.0
"""Where requests were not looked for so long (Ctrl-Z, a laptop that slept), permissions that waited count no more."""
PERMISSIONS = ("acknowledge", "approve", "resume")
TIMED = 10
"""The time left follows from so many of the newest episodes."""
GOODBYE_S = ANSWERED_S
"""How long the end waits for what is still being asked of the machine."""
KEPT = "kept"
"""The run's folder for checkpoints that a person wants to stay."""


class Control(Callback):
    """Lets people control one training run. Use as a callback, and with `serving` around the training."""

    def __init__(self, run: Path, machine: str | None = None) -> None:
        self.run, self.session = Path(run), secrets.token_hex(8)
        self._machine = None if machine is None else Watch(machine)
        self._changed = threading.Condition()
        self._trainer: Any = None
        self._paused = self._holding = self._stop_now = False
        self._question: dict[str, Any] | None = None
        self._questions = 0
        self._approved: bool | None = None
        self._todo: deque[tuple[str, Request]] = deque()
        self._answers: deque[dict[str, Any]] = deque(maxlen=files.ANSWERS)
        self._payload = ""
        self._fault_number = 0
        self._busy: deque[float] = deque(maxlen=TIMED)
        self._began = 0.0
        self._beat = 0
        self._ended = self._message = ""
        self._publishing = threading.Lock()
        self._asking: list[threading.Thread] = []
        """Threads that wait for the machine's answers."""

    # Around the training.

    def serving(self, trainer: Any) -> "_Serving":
        """Listens while the block runs, and says how it ended."""
        return _Serving(self, trainer)

    def begin(self, trainer: Any) -> None:
        """Start to listen. What the last payload of an earlier session was holds again."""
        self._trainer = trainer
        atomic.make_folder(files.folder_of(self.run) / files.REQUESTS)
        if trainer.robot.pauses_between_trajectories:
            trainer.robot.before_trajectory = self.hold
        payloads = [event for event in files.read_events(self.run) if event.kind == "payload"]
        if payloads:
            self._set_payload(str(payloads[-1].extra.get("tag", "")))
        self._publish()
        self._done = threading.Event()
        self._listening = threading.Thread(target=self._serve, name="control", daemon=True)
        self._listening.start()
        if self._machine is not None:
            self._machine.start()

    def end(self, state: str, message: str = "") -> None:
        """Stop listening, and say how it ended: nothing is said after that."""
        self._done.set()
        deadline = time.monotonic() + GOODBYE_S
        self._listening.join(GOODBYE_S)
        for thread in self._asking:  # a stop for the machine may still be on its way
            thread.join(max(deadline - time.monotonic(), 0.0))
        if self._machine is not None:
            self._machine.close()
        with self._changed:
            self._ended, self._message = state, message
            self._question = None
        self._publish()

    # In the trainer's thread.

    def before_episode(self, trainer: Any, episode: int) -> None:
        """Do what was asked for, and wait here while paused."""
        self._deal()
        self.hold()
        self._began = time.monotonic()

    def after_episode(self, trainer: Any, summary: EpisodeSummary) -> None:
        """Count the time."""
        self._busy.append(time.monotonic() - self._began)
        self._deal()

    def hold(self) -> bool:
        """Wait here while paused; whether there was something to wait for. `EpisodeAbandoned` when told to stop."""
        waited = False
        while True:
            if self._stop_now or (self._paused and self._trainer.stop_requested):
                raise EpisodeAbandoned
            if not self._paused:
                break
            if not waited:
                say("Paused from the live page; the robot holds.")
                self._mark("pause", "paused")
            waited = True
            with self._changed:
                self._holding = True
                self._changed.wait(EVERY_S)
            if self._trainer.phase != "moving":
                self._deal()
        if waited:
            with self._changed:
                self._holding = False
            say("Going on.")
        return waited

    def ask(self, text: str) -> bool:
        """Approval by a person at the live page; waits for it."""
        with self._changed:
            self._questions += 1
            self._approved = None
            self._question = {"number": self._questions, "text": text}
        say(f"Waiting for approval at the live page: {text}.")
        try:
            while True:
                with self._changed:
                    if self._approved is not None:
                        break
                    self._changed.wait(EVERY_S)
                if self._stop_now or self._trainer.stop_requested:
                    raise EpisodeAbandoned
                self._deal()
            self._deal()  # what was asked for before the answer
        finally:
            with self._changed:
                self._question = None
        if not self._approved:
            self._mark("reject", "the operator rejected the new policy")
        return bool(self._approved)

    def _deal(self) -> None:
        """What had to wait for the end of an episode."""
        while self._todo:
            name, request = self._todo[0]
            try:
                text = getattr(self, f"_do_{request.kind}")(request.value)
            except UserError as error:
                self._answer(name, request.kind, False, str(error))
            else:
                self._answer(name, request.kind, True, text)
            self._todo.popleft()

    def _do_payload(self, tag: str) -> str:
        text = self._set_payload(tag.strip())
        self._mark("payload", f"payload {self._payload}", {"tag": self._payload})
        return text

    def _set_payload(self, tag: str) -> str:
        robot, config = self._trainer.robot, self._trainer.config
        text = f"episodes are now marked with {tag}"
        weight = _kilograms(tag)
        if weight is not None and robot.plant is not None:
            dataclasses.replace(config, payload_kg=weight)  # refuses what no run may have
            robot.set_payload(weight)
            tag = f"{weight:g} kg"
            text = f"the simulated robot now carries {tag}"
        self._payload = tag
        return text

    def _do_checkpoint(self, _: None) -> str:
        episode = self._trainer.episode
        path = self.run / "checkpoints" / f"{episode:06d}.safetensors"
        try:
            data = path.read_bytes()
        except OSError:
            raise UserError("there is no finished episode yet, so there is nothing to keep.") from None
        atomic.make_folder(self.run / KEPT)
        atomic.write_bytes(self.run / KEPT / path.name, data)
        self._mark("checkpoint", f"checkpoint of episode {episode} kept", episode=episode)
        return f"the checkpoint after episode {episode} stays in {KEPT}/{path.name}"

    def _do_return(self, episode: int) -> str:
        trainer = self._trainer
        arrays, _ = trainer.run.load_episode(episode)
        self._put(dataclasses.replace(trainer.state, policy=policy_from_arrays(trainer.task.spec, arrays)))
        self._mark("return", f"back to the policy of episode {episode}")
        return f"episode {trainer.episode + 1} runs the policy of episode {episode}"

    def _do_restore(self, episode: int) -> str:
        trainer, path = self._trainer, self.run / KEPT / f"{episode:06d}.safetensors"
        template = {"learner": trainer.state, "robot": trainer.robot.snapshot()}
        try:
            arrays, _ = unpack(path.read_bytes())
            learner = from_arrays(template, arrays)["learner"]
        except OSError as error:
            raise UserError(f"cannot read {path}: {atomic.cause(error)}.") from None
        except DamagedFile as error:
            raise UserError(f"{path} is damaged: {error}.") from None
        self._put(learner)
        self._mark("restore", f"back to the checkpoint after episode {episode}")
        return f"model and policy are those after episode {episode}"

    def _put(self, state: Any) -> None:
        unknown = jnp.full_like(state.expected_cost, jnp.nan)
        self._trainer.put(dataclasses.replace(state, expected_cost=unknown))

    def _mark(self, kind: str, text: str, extra: dict[str, Any] | None = None, episode: int | None = None) -> None:
        with contextlib.suppress(OSError):
            first = self._trainer.episode + 1 if episode is None else episode
            files.append_event(self.run, Event(first, kind, text, extra or {}))

    # In the thread that listens.

    def _serve(self) -> None:
        published, looked = 0.0, since_boot()
        while not self._done.wait(EVERY_S):
            was_away, looked = since_boot() - looked > AWAY_S, since_boot()
            names = files.waiting(self.run)
            for name in sorted(names, key=self._is_no_stop):  # a stop first, whatever came before it
                self._receive(name, was_away)
            self._watch_faults()
            if names or time.monotonic() - published >= BEAT_S:
                self._publish()
                published = time.monotonic()

    def _is_no_stop(self, name: str) -> bool:
        try:
            return files.read_request(self.run, name).kind != "stop"
        except UserError:
            return True

    def _receive(self, name: str, was_away: bool) -> None:
        kind = "unknown"
        try:
            request = files.read_request(self.run, name)
            kind = request.kind
            if request.session != self.session:
                raise UserError("this was meant for a trainer that is not there any more.")
            if was_away and kind in PERMISSIONS:
                raise UserError("this has waited while the trainer was away; look, and ask again.")
            text = self._take(name, request)
            if text is not None:
                self._answer(name, kind, True, text)
        except UserError as error:
            self._answer(name, kind, False, str(error))
        with contextlib.suppress(UserError):
            atomic.remove(files.folder_of(self.run) / files.REQUESTS / name)

    def _take(self, name: str, request: Request) -> str | None:
        """Deal with a request at once, or put it where the trainer's thread finds it (then there is no answer yet)."""
        if request.kind == "pause":
            return self._pause()
        if request.kind == "resume":
            with self._changed:
                self._paused = False
                self._changed.notify_all()
            return "goes on"
        if request.kind == "stop":
            return self._stop(name)
        if request.kind == "acknowledge":
            if self._machine is None:
                raise UserError("this robot is simulated and has no fault to acknowledge.")
            return self._ask_machine(name, "acknowledge", request.value)
        if request.kind in ("approve", "reject"):
            return self._decide(request)
        self._todo.append((name, request))
        return None

    def _pause(self) -> str:
        self._paused = True
        robot = self._trainer.robot
        robot.finish_trajectory()
        return f"pauses after this {'trajectory' if robot.pauses_between_trajectories else 'episode'}"

    def _stop(self, name: str) -> str | None:
        self._trainer.stop_requested = True
        stepped = self._trainer.robot.pauses_between_trajectories
        with self._changed:
            self._stop_now = stepped or self._paused
            self._changed.notify_all()
        if self._machine is not None:
            return self._ask_machine(name, "stop")
        return f"stops after this {'trajectory' if stepped else 'episode'}"

    def _ask_machine(self, name: str, kind: str, number: Any = None) -> None:
        """In a thread of its own: a machine may take seconds to answer, and the next request must not wait for it."""
        machine = self._machine
        assert machine is not None

        def ask() -> None:
            try:
                self._answer(name, kind, True, machine.ask(kind, number))
            except UserError as error:
                self._answer(name, kind, False, str(error))

        thread = threading.Thread(target=ask, name=kind, daemon=True)
        self._asking = [other for other in self._asking if other.is_alive()] + [thread]
        thread.start()

    def _decide(self, request: Request) -> str:
        with self._changed:
            if self._question is None or self._question["number"] != request.value:
                raise UserError("this question is not open any more.")
            self._approved = request.kind == "approve"
            self._changed.notify_all()
        return "approved" if self._approved else "rejected; the old policy runs again"

    def _watch_faults(self) -> None:
        seen = None if self._machine is None else self._machine.seen
        if seen and seen["state"] == "fault" and seen["fault_number"] != self._fault_number:
            self._fault_number = seen["fault_number"]
            self._mark("fault", f"fault: {seen['fault']}")

    def _answer(self, name: str, kind: str, ok: bool, text: str) -> None:
        with self._changed:
            self._answers.append({"request": name, "kind": kind, "ok": ok, "text": text})

    def _publish(self) -> None:
        # One at a time: what was true before must not replace what is true now.
        with self._publishing, contextlib.suppress(OSError):  # a full disk stops the training, and says so; not this
            files.publish(self.run, self._status())

    def _status(self) -> Status:
        trainer = self._trainer
        left = max(trainer.config.episodes - trainer.episode, 0)
        busy = list(self._busy)
        # The first episode compiles, and says little about the next.
        typical = busy[1:] if len(busy) > 1 else busy
        with self._changed:
            self._beat += 1
            return Status(
                session=self.session,
                beat=self._beat,
                host=socket.gethostname(),
                pid=os.getpid(),
                state=self._state(),
                phase=trainer.phase,
                episode=trainer.episode,
                episodes=trainer.config.episodes,
                seconds_left=left * sum(typical) / len(typical) if typical else None,
                robot_seconds_left=left * trainer.task.episode_s,
                payload=self._payload,
                question=self._question,
                machine=None if self._machine is None else self._machine.seen,
                message=self._message,
                pending=tuple(request.kind for _, request in list(self._todo)),
                answers=tuple(self._answers),
            )

    def _state(self) -> str:
        if self._ended:
            return self._ended
        if self._trainer.stop_requested:
            return "stopping"
        if self._question is not None:
            return "asking"
        if self._paused:
            return "paused" if self._holding else "pausing"
        return "running"


def _kilograms(tag: str) -> float | None:
    try:
        return float(tag.removesuffix("kg"))
    except ValueError:
        return None


class _Serving:
    """`Control.serving`."""

    def __init__(self, control: Control, trainer: Any) -> None:
        self.control, self.trainer = control, trainer

    def __enter__(self) -> None:
        self.control.begin(self.trainer)

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        if error is not None:
            self.control.end("failed", f"{type(error).__name__}" if not str(error) else str(error))
        else:
            self.control.end("stopped" if self.trainer.stop_requested else "finished")
