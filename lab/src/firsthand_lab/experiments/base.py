"""What an experiment is: independent jobs that run anywhere, and a conclusion from the data they left.

    class Coin(Experiment):
        name, shows, figure = "coin", "how often a coin shows heads", "none"
        cost = Cost(full_min=1.0, quick_s=2.0)
        seeds = Seeds(full=5, quick=3, tiny=2)

        def jobs(self, size):
            throws = size.pick(full=10_000, quick=100, tiny=5)
            runner = "firsthand_lab.experiments.coin:throw"
            return [Job(f"seed-{s}", runner, {"seed": s, "throws": throws}, steps=throws)
                    for s in range(size.seeds)]

        def conclude(self, size, results):
            shares = [r.json("share.json")["share"] for r in results]
            rows = (Comparison("share of heads", "0.51", "0.5", Verdict.PASS),)
            return Finding(Verdict.PASS, "…one paragraph…", rows, figures={"shares": figure},
                           tables={"shares": {"seed": range(size.seeds), "share": shares}})

    def throw(parameters, folder, report):
        ...                                    # load folder's checkpoint, if there is one, and go on from there
        files.write_json(folder / "share.json", {...})     # or write_csv, write_arrays: atomic, no pickle
        report(done, "51 % heads")             # what is in the folder now is a checkpoint; called at least every ~20 s

Rules. A job's `runner` is `module:function`, and its parameters are JSON: with them, and nothing else, it can be run in
another process or on another machine. A job may be killed at any instant. It is then started again, on a folder that
holds what was there at some call of `report` (or nothing), and must go on from that; its data must not depend on how
often this happened. Jobs with equal runner and parameters are the same job and give the same data, also across
experiments: such a job is run once and its folder copied. Files that only serve to continue belong below
`folder/checkpoint/`, which is removed when the job is done. `conclude` reads results and draws, in the process of the
command line: it takes seconds and computes nothing with JAX.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np

from firsthand.errors import UserError

from . import files

if TYPE_CHECKING:  # workers do without it
    from matplotlib.figure import Figure

SIZES = ("full", "quick", "tiny")
"""The paper's, one for a coffee break, and one for the tests."""
MAX_SEEDS = 64

Value = TypeVar("Value")


@dataclass(frozen=True)
class Size:
    """How large an experiment is."""

    name: str
    """full, quick or tiny."""
    seeds: int
    """Random seeds 0 … seeds − 1."""

    def __post_init__(self) -> None:
        if self.name not in SIZES:
            raise UserError(f"size is {self.name!r}, but must be one of {', '.join(SIZES)}.")
        if not 1 <= self.seeds <= MAX_SEEDS:
            raise UserError(f"seeds is {self.seeds}, but must lie between 1 and {MAX_SEEDS}.")

    def pick(self, *, full: Value, quick: Value, tiny: Value) -> Value:
        """The value for this size."""
        return {"full": full, "quick": quick, "tiny": tiny}[self.name]


@dataclass(frozen=True)
class Cost:
    """What an experiment takes in core time, roughly; docs/experiments.md says what it rests on."""

    full_min: float
    """Core-minutes of the full size."""
    quick_s: float
    """Core-seconds of the quick size."""


@dataclass(frozen=True)
class Seeds:
    """How many seeds each size has unless told otherwise."""

    full: int
    quick: int
    tiny: int

    def of(self, size: str) -> int:
        """The number for a size's name."""
        return {"full": self.full, "quick": self.quick, "tiny": self.tiny}[size]


@dataclass(frozen=True)
class Job:
    """A piece of an experiment that is independent of the others."""

    name: str
    """For people, and part of the folder's name: letters, digits, dots, dashes."""
    runner: str
    """`module:function`, called as function(parameters, folder, report)."""
    parameters: Mapping[str, Any]
    """Plain JSON values: what the job depends on."""
    steps: int = 1
    """What `report` counts up to."""
    weight: float = 1.0
    """Core-seconds per step, roughly: for the time left, and the longest job is started first."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", self.name):
            raise ValueError(f"the job's name is {self.name!r}, but must be letters, digits, dots and dashes")
        if ":" not in self.runner:
            raise ValueError(f"the job's runner is {self.runner!r}, but must be module:function")
        if self.steps < 1:
            raise ValueError(f"the job has {self.steps} steps, but must have at least 1")

    @property
    def id(self) -> str:
        """The folder's name: the same for equal runner and parameters, another one otherwise."""
        text = json.dumps([self.runner, self.parameters], sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for job.json."""
        return {
            "name": self.name,
            "runner": self.runner,
            "parameters": dict(self.parameters),
            "steps": self.steps,
            "weight": self.weight,
        }


@runtime_checkable
class Report(Protocol):
    """How a job tells how far it is."""

    @abstractmethod
    def __call__(self, done: float, note: str = "") -> None:
        """`done` of the job's steps are behind us, and the folder is a checkpoint; `note` is shown beside the bar."""


@dataclass(frozen=True)
class Result:
    """A job and its data."""

    job: Job
    """The request."""
    folder: Path
    """Where its data is."""

    def json(self, name: str) -> Any:
        """A JSON file of the job."""
        return files.read_json(self.folder / name)

    def csv(self, name: str) -> dict[str, np.ndarray]:
        """A CSV file of the job, by column."""
        return files.read_csv(self.folder / name)

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of a safetensors file of the job."""
        return files.read_arrays(self.folder / name)[0]

    @property
    def finished(self) -> bool:
        """Whether the job is finished, or its data is still incomplete."""
        return (self.folder / files.DONE).exists()

    @property
    def done(self) -> dict[str, Any]:
        """What was noted at the end: `seconds`, `core_seconds` (both since it was last started), `cores`, `commit`."""
        return self.json(files.DONE)


class Verdict(Enum):
    """How a claim of the paper fared."""

    PASS = "PASS"
    """The claim holds on our robots."""
    FAIL = "FAIL"
    """The claim does not hold."""
    NOT_COMPARABLE = "not comparable"
    """The experiment, or this size of it, is not conclusive."""

    @staticmethod
    def of(holds: bool, size: Size) -> "Verdict":
        """PASS or FAIL. A quick form can see a claim hold, not refute it; what the tests' size finds says nothing."""
        if size.name == "tiny" or (size.name == "quick" and not holds):
            return Verdict.NOT_COMPARABLE
        return Verdict.PASS if holds else Verdict.FAIL

    @staticmethod
    def of_full(holds: bool, size: Size) -> "Verdict":
        """The same for a claim about the full size: a smaller one cannot tell either way."""
        return Verdict.of(holds, size) if size.name == "full" else Verdict.NOT_COMPARABLE

    @staticmethod
    def overall(rows: "Iterable[Comparison]") -> "Verdict":
        """FAIL if one row fails; else not comparable if one is not, or if no row claims anything; else PASS."""
        found = {row.verdict for row in rows} - {None}
        if Verdict.FAIL in found:
            return Verdict.FAIL
        return Verdict.PASS if found == {Verdict.PASS} else Verdict.NOT_COMPARABLE


@dataclass(frozen=True)
class Comparison:
    """One row of a finding's table."""

    quantity: str
    """The measured quantity, with its unit."""
    measured: str
    """Our number, as it shall be read."""
    paper: str
    """The paper's, or a dash."""
    verdict: Verdict | None = None
    """None for a number that the paper does not claim."""


@dataclass(frozen=True)
class Finding:
    """The result of an experiment. The caller writes the files."""

    verdict: Verdict
    """Against the paper's claim as a whole."""
    text: str
    """One plain paragraph: what was done, what came out, what it says about the claim."""
    rows: tuple[Comparison, ...]
    """Measured beside published."""
    figures: "Mapping[str, Figure]" = field(default_factory=dict)
    """By file name without ending; each becomes a PNG and an SVG."""
    tables: Mapping[str, Mapping[str, Sequence[Any] | np.ndarray]] = field(default_factory=dict)
    """The data behind the figures, by file name without ending; columns of equal length become a CSV."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """More numbers for finding.json."""
    summary: Sequence[Mapping[str, Sequence[str]]] = ()
    """Tables of its own above the rows, by column; as they shall be read, each at most 80 characters wide."""
    command: str | None = None
    """What to type for all of this, where it is more than the experiment's own command."""


class Experiment(ABC):
    """One figure or table of the paper, or one claim of its text."""

    name: ClassVar[str]
    """Its name on the command line."""
    shows: ClassVar[str]
    """Its result, in a few words."""
    figure: ClassVar[str]
    """Where it is in the paper: "figure 3", "table 1", "section 3.3"."""
    cost: ClassVar[Cost]
    """Its cost in time."""
    seeds: ClassVar[Seeds]
    """Seeds unless told otherwise."""
    grows: ClassVar[bool] = False
    """Whether a folder takes other numbers of seeds later on."""
    partial: ClassVar[bool] = False
    """Whether `conclude` can be given some of the results: what is there is shown before all jobs are done."""

    @abstractmethod
    def jobs(self, size: Size) -> list[Job]:
        """The independent pieces."""

    @abstractmethod
    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """What follows; `results` are in the order of `jobs(size)`."""

    def command(self, size: Size) -> str:
        """The command that gives this finding."""
        words = ["firsthand experiment", self.name]
        if size.name != "full":
            words.append(f"--{size.name}")
        if size.seeds != self.seeds.of(size.name):
            words.append(f"--seeds {size.seeds}")
        return " ".join(words)
