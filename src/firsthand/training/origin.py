"""What a run started from, as data in its config.json."""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ..errors import UserError, suggest

Parts = Literal["model", "policy", "both"]
"""What can be taken over from another run."""


@dataclass(frozen=True)
class InitFrom:
    """Another run whose model, policy or both this one began with."""

    path: str
    """Its folder."""
    episode: int
    """After which of its episodes."""
    sha256: str
    """SHA-256 of the checkpoint that was read."""
    parts: Parts
    """What was taken over."""

    def __post_init__(self) -> None:
        check_parts(self.parts)

    @property
    def takes_model(self) -> bool:
        """Whether the model is taken over."""
        return self.parts in ("model", "both")

    @property
    def takes_policy(self) -> bool:
        """Whether the policy is taken over."""
        return self.parts in ("policy", "both")


BaseMode = Literal["add", "target"]
"""Whether the learned part is added to the base's command, or moves the target that the base follows."""


@dataclass(frozen=True)
class BaseOrigin:
    """The controller that a run learns on top of."""

    name: str
    """`pi`, `reference`, `FILE.py:FUNCTION`, or the path of a run or an exported policy."""
    mode: BaseMode = "add"
    """How the learned part acts."""
    sha256: str = ""
    """SHA-256 of its file, where it has one."""
    robot_time_s: float = 0.0
    """How long the robot was moved to identify it."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(BaseMode):
            known = ", ".join(get_args(BaseMode))
            raise UserError(f"base-mode is {self.mode!r}, but must be one of {known}.")


IDENTIFICATION = "identification of the base"
"""Name of the log of what the robot did while its base was identified: it comes from no file."""


@dataclass(frozen=True)
class TakenLog:
    """A log whose transitions were in the buffer before the first episode."""

    path: str
    """Where it was."""
    sha256: str
    """SHA-256 of its content."""
    rows: int
    """Rows in it, after resampling."""
    taken: int
    """Transitions that were taken."""
    refused: dict[str, int] = field(default_factory=dict)
    """Rows that were not, by reason."""
    note: str = ""
    """Further notes."""


def check_parts(value: Any) -> None:
    """One sentence unless `value` is one of `Parts`."""
    known = get_args(Parts)
    if value not in known:
        raise UserError(f"init is {value!r}, but must be one of {', '.join(known)}{suggest(str(value), known)}.")
