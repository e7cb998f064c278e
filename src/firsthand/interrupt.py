"""Ctrl-C as a flag to poll, instead of an exception that may be raised anywhere."""

import signal
import threading


class Interrupt:
    """Ctrl-C once asks to stop; twice stops at once.

    As an exception it would be lost where Python only prints what is raised: in hooks around a fork, in callbacks of
    the garbage collector. Outside of the main thread, which alone hears signals, it does nothing.
    """

    def __enter__(self) -> "Interrupt":
        self._pressed, self._before = False, None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def pressed(self) -> bool:
        """Whether the user wants to stop."""
        return self._pressed

    def _handle(self, *_: object) -> None:
        if self._pressed:
            raise KeyboardInterrupt
        self._pressed = True
