"""Stopping a training run: the request that its parts share, and Ctrl-C."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Protocol

from ..robots import AbstractRobot

STOP_MACHINE_S = 4.0
"""How long leaving at once may take to stop a machine."""


class StopRequest:
    """Whether somebody wants the training to stop. The loop, the robot, Ctrl-C and the live page share one.

    A plain attribute and not a `threading.Event`: a signal handler may set it at any instant, without a lock.
    """

    def __init__(self) -> None:
        self._requested = False

    def request(self) -> None:
        """Stop as soon as what is under way is finished."""
        self._requested = True

    @property
    def requested(self) -> bool:
        """Whether to stop."""
        return self._requested


class Screen(Protocol):
    """The messages of Ctrl-C; both methods are called from a signal handler."""

    def show_stopping(self) -> None:
        """The training stops after this episode."""

    def show_last_words(self, text: str) -> None:
        """The process ends now."""


class StopOnInterrupt:
    """Ctrl-C lets the episode and its files be finished, then stops; a second one stops at once, machine included."""

    def __init__(
        self, stop: StopRequest, robot: AbstractRobot, screen: Screen, episode: Callable[[], int], resume_command: str
    ) -> None:
        self.stop, self.robot, self.screen = stop, robot, screen
        self.episode, self.resume_command = episode, resume_command
        self._leaving = False

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGINT, self.handle)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def handle(self, *_: object) -> None:
        """First: ask. Second: stop the machine and leave. Third: leave.

        Not with an exception: raised in a callback of the garbage collector, it would be printed and forgotten. A run
        folder can be left at any instant.
        """
        if not self.stop.requested:
            self.stop.request()
            self.screen.show_stopping()
            return
        machine = "" if self._leaving else self._stop_machine()
        self.screen.show_last_words(
            f"{machine}Stopped in the middle of episode {self.episode() + 1}, which is lost; what was before is "
            f"written. Continue with: {self.resume_command}"
        )
        os._exit(130)

    def _stop_machine(self) -> str:
        """The machine's state now. Asked in a thread, because this one may be in the middle of a request to the
        machine."""
        self._leaving = True
        answers = ["The machine could not be told to stop."]
        thread = threading.Thread(target=lambda: answers.append(self.robot.stop_at_once()), daemon=True)
        thread.start()
        thread.join(STOP_MACHINE_S)
        return f"{answers[-1]} ".lstrip()
