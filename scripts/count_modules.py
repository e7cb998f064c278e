"""Which of our modules are entered while one episode runs: the fewer, the less a reader has to know.

    python scripts/count_modules.py [--robot excavator] [--preset fast]

Trains two episodes in a temporary folder, as `firsthand train` does, and counts the calls of Python functions in the
second one by module. What JAX has compiled in the first one is not traced again and does not count.
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
        if event == "call" and name.partition(".")[0] in OURS:
            self.calls[name] += 1


def main() -> None:
    """Count, and print the list."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--robot", default="excavator")
    parser.add_argument("--preset", default="fast")
    given = parser.parse_args()
    count = Count(Trainer.run_episode)
    Trainer.run_episode = lambda trainer: count(trainer)  # pyright: ignore[reportAttributeAccessIssue]
    with tempfile.TemporaryDirectory() as folder:
        Train(given.robot, preset=given.preset, episodes=2, out=Path(folder) / "run", no_report=True).run()
    for name, calls in count.calls.most_common():
        print(f"{calls:8d}  {name}")
    print(f"{len(count.calls)} modules")


if __name__ == "__main__":
    main()
