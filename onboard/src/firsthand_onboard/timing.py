"""The loop's clock: monotonic, absolute deadlines, and what can be done against jitter from Python."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SLICE_S = 0.004
"""While waiting for a deadline the loop looks for messages this often, so that a stop does not wait for a period."""


def since_boot() -> float:
    """Seconds of a clock that goes on while the computer sleeps, where there is one: what waited has grown old then."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class RealTime:
    """Deadlines one period apart. A late step is counted, and the ones after it do not try to catch up."""

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self.overruns = 0
        self.worst_late_s = 0.0
        self._due = time.monotonic()

    def now(self) -> float:
        """Seconds since the computer was started, also those in which it slept: what was read before has grown old."""
        return since_boot()

    def restart(self) -> None:
        """The next deadline is one period from now."""
        self._due = time.monotonic() + self.period_s

    def wait(self, poll: Callable[[], str]) -> str:
        """Until the next deadline, or until `poll` gives a reason to stop; returns that reason."""
        late = time.monotonic() - self._due
        if late > 0:
            self.overruns += 1
            self.worst_late_s = max(self.worst_late_s, late)
        while True:
            reason = poll()
            left = self._due - time.monotonic()
            if reason or left <= 0:
                break
            time.sleep(min(left, SLICE_S))
        self._due = max(self._due, time.monotonic() - self.period_s) + self.period_s
        return reason


class LockStep:
    """Time passes when the machine is written to: no waiting, no overruns."""

    overruns = 0
    worst_late_s = 0.0

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s

    def now(self) -> float:
        """Simulated time stands still within a step."""
        return 0.0

    def restart(self) -> None:
        """Nothing to align."""

    def wait(self, poll: Callable[[], str]) -> str:
        """Does not wait."""
        return poll()


def request_real_time(priority: int) -> str:
    """Ask for SCHED_FIFO; returns a warning for the operator where it is not permitted, else an empty text."""
    if priority <= 0:
        return "real-time scheduling is switched off: other programs on this computer can delay the loop"
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except (OSError, AttributeError) as error:
        return (
            f"SCHED_FIFO priority {priority} is not permitted ({error}): other programs on this computer can delay the "
            "loop; allow it with `sudo setcap cap_sys_nice=eip <python>` or a limit `rtprio` in limits.conf"
        )
    return ""


MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4


def lock_memory() -> str:
    """Keep this process's memory from being swapped out; returns a warning where that is not permitted, else ''.

    Only where there is no limit on locked memory, or none for this user: otherwise a later allocation would fail.
    """
    try:
        import resource

        libc = ctypes.CDLL(None, use_errno=True)
        unlimited = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY
        if unlimited or os.geteuid() == 0:
            for flags in (MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT, MCL_CURRENT | MCL_FUTURE):
                if libc.mlockall(flags) == 0:
                    return ""
            why = os.strerror(ctypes.get_errno())
        else:
            why = "the limit `memlock` of this user is not unlimited"
    except (ImportError, OSError, AttributeError) as error:
        why = str(error)
    return (
        f"memory is not locked ({why}): a computer that swaps can delay the loop; allow it with a limit "
        "`memlock unlimited` in limits.conf"
    )


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the collector out of the loop: what lives is frozen, nothing is searched until the end of the block."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
