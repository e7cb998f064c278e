"""Live control of one training run: pause, stop, approve, and requests that wait for the end of an episode.

A thread reads requests, and reports every half second that the trainer is alive. Requests that change the learner or
the robot wait for the trainer's own thread, which carries them out between two episodes.
"""

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...console import notify
from ...control.files import Request
from ...control.machine import FleetWatch, Watch, address_of, watch_machines
from ...errors import UserError
from ...robots import AbstractRobot
from ...robots.base import EpisodeAbandoned
from ..config import TrainingConfig
from ..display import EpisodeProgress
from ..parts import AbstractControl, AbstractRequest, Meanwhile, Outcome
from ..recorder import FolderRecorder
from ..stopping import StopRequest
from .inbox import Answers, Inbox
from .interventions import EventLog, Interventions
from .machine import GOODBYE_S, MachineLink
from .questions import Questions
from .status import StatusPublisher

BEAT_S = 0.5
"""How often the trainer reports that it lives."""
LOOK_S = 0.2
"""Time between two looks for something new, while waiting or listening."""


class PauseSwitch:
    """Where the trainer's thread waits while a person wants a pause. Switched by the thread that listens."""

    def __init__(self, stop: StopRequest, mark_pause: Callable[[], None]) -> None:
        self.stop, self.mark_pause = stop, mark_pause
        self._changed = threading.Condition()
        self._paused = self._holding = self._abandon = False

    def pause(self) -> None:
        """Wait at the next opportunity."""
        with self._changed:
            self._paused = True

    def go_on(self) -> None:
        """Wait no longer."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def abandon(self, *, episode: bool) -> None:
        """A stop was requested. A pause ends by it, and, where `episode`, so does the episode under way."""
        with self._changed:
            self._abandon = episode or self._paused
            self._changed.notify_all()

    @property
    def abandons(self) -> bool:
        """Whether what is under way shall be abandoned."""
        return self._abandon

    def state(self) -> str:
        """running, pausing or paused."""
        with self._changed:
            return "running" if not self._paused else "paused" if self._holding else "pausing"

    def wait(self, meanwhile: Meanwhile = lambda: None) -> bool:
        """Wait here while paused; whether there was something to wait for. `EpisodeAbandoned` when told to stop."""
        waited = False
        while True:
            if self._abandon or (self._paused and self.stop.requested):
                raise EpisodeAbandoned
            if not self._paused:
                break
            if not waited:
                notify("Paused from the live page; the robot holds.")
                self.mark_pause()
            waited = True
            with self._changed:
                self._holding = True
                self._changed.wait(LOOK_S)
            meanwhile()
        if waited:
            with self._changed:
                self._holding = False
            notify("Going on.")
        return waited


class LiveControl(AbstractControl):
    """Lets people control one training run, with `serving` around the training; `progress` belongs to its callbacks."""

    def __init__(
        self,
        recorder: FolderRecorder,
        robot: AbstractRobot,
        config: TrainingConfig,
        stop: StopRequest,
        watch: Watch | FleetWatch | None = None,
    ) -> None:
        run, address = recorder.run.path, address_of(config.robot)
        watch = watch_machines(address) if watch is None and address is not None else watch
        self.run, self.session = run, secrets.token_hex(8)
        self.robot, self.stop = robot, stop
        self.progress = EpisodeProgress(config.episodes, robot.task.episode_s)
        self.answers, self.events = Answers(), EventLog(run)
        self.interventions = Interventions(run, self.events, recorder, robot, config)
        self.inbox = Inbox(run, self.session, self.answers, self._handle)
        self.publisher = StatusPublisher(run, self.session, self._status)
        self.machine = None if watch is None else MachineLink(watch, self.answers, self._mark_fault)
        self.questions = Questions()
        self.switch = PauseSwitch(stop, self._mark_pause)
        self._waiting: deque[_WaitingRequest] = deque()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)

    # Around the training.

    @contextmanager
    def serving(self, episode: int) -> Iterator[None]:
        """Listens while the block runs, from after this episode on, and reports how it ended."""
        self.begin(episode)
        try:
            yield
        except BaseException as error:
            self.end("failed", str(error) or type(error).__name__)
            raise
        self.end("stopped" if self.stop.requested else "finished")

    def begin(self, episode: int) -> None:
        """Start to listen."""
        self.progress.episode = episode
        self.inbox.open()
        if self.robot.pauses_between_trajectories:
            self.robot.before_trajectory = self.switch.wait
        self.interventions.resume_payload()
        self.publisher.publish()
        self._thread.start()
        if self.machine is not None:
            self.machine.start()

    def end(self, state: str, message: str = "") -> None:
        """Stop listening, and report how it ended: nothing is reported after that."""
        self._done.set()
        deadline = time.monotonic() + GOODBYE_S
        self._thread.join(GOODBYE_S)
        if self.machine is not None:
            self.machine.close(deadline)
        self.publisher.publish_last(state, message)

    # In the trainer's thread.

    def next_request(self) -> AbstractRequest | None:
        """The oldest request that waits for the end of an episode."""
        return self._waiting[0] if self._waiting else None

    def wait_while_paused(self, meanwhile: Meanwhile) -> None:
        """Wait here while paused; `EpisodeAbandoned` when told to stop."""
        self.switch.wait(meanwhile)

    def ask(self, question: str, meanwhile: Meanwhile) -> bool:
        """Approval by a person at the live page; waits for it."""
        notify(f"Waiting for approval at the live page: {question}.")
        with self.questions.open(question):
            while (approved := self.questions.wait(LOOK_S)) is None:
                if self.switch.abandons or self.stop.requested:
                    raise EpisodeAbandoned
                meanwhile()
            meanwhile()  # what was asked for before the answer
        if not approved:
            self.events.add(self.progress.episode + 1, "reject", "the operator rejected the new policy")
        return approved

    # In the thread that listens.

    def _serve(self) -> None:
        published = 0.0
        while not self._done.wait(LOOK_S):
            anything = self.inbox.look()
            if self.machine is not None:
                self.machine.check_faults()
            if anything or time.monotonic() - published >= BEAT_S:
                self.publisher.publish()
                published = time.monotonic()

    def _handle(self, name: str, request: Request) -> str | None:
        """Carry out a request at once, or queue it for the trainer's thread (then there is no answer yet)."""
        match request.kind:
            case "pause":
                return self._pause()
            case "resume":
                return self._go_on()
            case "stop":
                return self._stop(name)
            case "acknowledge":
                return self._ask_machine(name, "acknowledge", request.value)
            case "approve" | "reject":
                return self.questions.answer(int(request.value or 0), approved=request.kind == "approve")
        self._waiting.append(_WaitingRequest(name, request, self))
        return None

    def _pause(self) -> str:
        self.switch.pause()
        self.robot.finish_trajectory()
        return f"pauses after this {self._unit()}"

    def _go_on(self) -> str:
        self.switch.go_on()
        return "goes on"

    def _stop(self, name: str) -> str | None:
        self.stop.request()
        self.switch.abandon(episode=self.robot.pauses_between_trajectories)
        if self.machine is not None:
            return self._ask_machine(name, "stop")
        return f"stops after this {self._unit()}"

    def _ask_machine(self, name: str, kind: str, number: Any = None) -> None:
        if self.machine is None:
            raise UserError("this robot is simulated and has no fault to acknowledge.")
        self.machine.ask(name, kind, number)

    def _unit(self) -> str:
        return "trajectory" if self.robot.pauses_between_trajectories else "episode"

    def _mark_pause(self) -> None:
        self.events.add(self.progress.episode + 1, "pause", "paused")

    def _mark_fault(self, text: str) -> None:
        self.events.add(self.progress.episode + 1, "fault", text)

    # In either.

    def _status(self) -> dict[str, Any]:
        question = self.questions.as_status()
        return {
            **self.progress.fields(),
            "state": self._state(asking=question is not None),
            "payload": self.interventions.payload,
            "question": question,
            "machine": None if self.machine is None else self.machine.seen,
            "pending": tuple(waiting.request.kind for waiting in list(self._waiting)),
            "answers": self.answers.newest(),
        }

    def _state(self, *, asking: bool) -> str:
        if self.stop.requested:
            return "stopping"
        return "asking" if asking else self.switch.state()


class _WaitingRequest(AbstractRequest):
    """A request that waits for the trainer's thread, at the head of the control's queue when it is its turn."""

    def __init__(self, name: str, request: Request, control: LiveControl) -> None:
        self.name, self.request, self.control = name, request, control
        self._episode = 0

    def carry_out(self, learner: Any, episode: int) -> Outcome:
        """Do what was asked for."""
        self._episode = episode
        return self.control.interventions.carry_out(self.request, learner, episode)

    def accept(self, outcome: Outcome) -> None:
        """Mark the curves, and answer."""
        self.control.interventions.mark(self.request, self._episode)
        self._answer(True, outcome.answer)

    def refuse(self, why: str) -> None:
        """Answer."""
        self._answer(False, why)

    def _answer(self, ok: bool, text: str) -> None:
        self.control.answers.add(self.name, self.request.kind, ok, text)
        self.control._waiting.popleft()
