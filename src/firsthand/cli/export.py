"""`firsthand export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Export:
    """Export a run's policy as C, ONNX, safetensors or ros2_control plugin, or its log as MCAP or LeRobot data."""

    run_folder: Annotated[Positional[Path], arg(metavar="RUN", help_behavior_hint="")]
    """Folder of the run."""
    format: Annotated[str, arg(metavar="FORMAT")] = "c"
    """c, onnx, safetensors, ros2_control (each with a model card); mcap or lerobot for all that the robot did."""
    episode: Annotated[int | None, arg(metavar="K", help_behavior_hint="")] = None
    """Take the policy that ran this episode (from 1); by default the best that the robot has proven."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Folder for the files; by default RUN/export."""
    observer: Annotated[bool, arg(help_behavior_hint="")] = False
    """Refuse a policy that ran without an observer; one that has an observer leaves with it in any case."""

    sign: Annotated[Path | None, arg(metavar="KEY", help_behavior_hint="")] = None
    """Sign every file with this private key (policy.key); the signatures lie beside them, in files that end in .sig."""

    def run(self) -> int:
        """Write and say where."""
        from ..export import write_export

        for path in write_export(
            self.run_folder, self.format, self.out, self.episode, needs_observer=self.observer, sign=self.sign
        ):
            print(path)
        return 0
