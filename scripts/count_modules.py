"""Which of our modules are entered while one episode runs: the fewer, the less a reader has to know.

    python scripts/count_modules.py [--robot excavator] [--preset fast] [--callers]

Trains two episodes in a temporary folder, as `firsthand train` does, and counts the calls of Python functions in the
second one by module. What JAX has compiled in the first one is not traced again and does not count. Nor do methods
that `dataclasses` generates, such as `__init__` and `__hash__`: they have no line in any of our files. With `--callers`
it also prints which function of which other module of ours entered each one.
"""

import argparse
import collections
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from firsthand.cli.train import Train
from firsthand.training import Trainer

OURS = ("firsthand", "firsthand_onboard")


class Count:
    """Counts calls by module in every second and later call of the function that it wraps."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.rounds = 0
        self.calls: collections.Counter[str] = collections.Counter()
        self.entries: collections.Counter[tuple[str, str, str]] = collections.Counter()
        """Calls from another module: the module, its function, and the function of ours that called it."""

    def __call__(self, *arguments: Any) -> Any:
        """Call it."""
        self.rounds += 1
        if self.rounds == 1:
            return self.function(*arguments)
        sys.setprofile(self._profile)
        try:
            return self.function(*arguments)
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        generated = frame.f_code.co_filename == "<string>"
        if event == "call" and name.partition(".")[0] in OURS and not generated:
            self.calls[name] += 1
            caller = _caller(frame)
            if caller.rpartition(":")[0] != name:
                self.entries[name, frame.f_code.co_qualname, caller] += 1


def _caller(frame: FrameType) -> str:
    """The nearest function of ours below a frame, as `module:function`."""
    below = frame.f_back
    while below is not None and below.f_globals.get("__name__", "").partition(".")[0] not in OURS:
        below = below.f_back
    return f"{below.f_globals['__name__']}:{below.f_code.co_qualname}" if below else ":"


def main() -> None:
    """Count, and print the list."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--robot", default="excavator")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--callers", action="store_true", help="also print who entered each module")
    given = parser.parse_args()
    count = Count(Trainer.run_episode)
    Trainer.run_episode = lambda trainer: count(trainer)  # pyright: ignore[reportAttributeAccessIssue]
    with tempfile.TemporaryDirectory() as folder:
        Train(given.robot, preset=given.preset, episodes=2, out=Path(folder) / "run", no_report=True).run()
    for name, calls in count.calls.most_common():
        print(f"{calls:8d}  {name}")
        for (module, function, caller), entries in count.entries.most_common():
            if given.callers and module == name:
                print(f"{'':10}{entries:6d} × {function} from {caller}")
    print(f"{len(count.calls)} modules")


if __name__ == "__main__":
    main()
