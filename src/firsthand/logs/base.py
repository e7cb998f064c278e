"""A log in memory: stretches without a gap, and the number of rows refused, by reason."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import next_state
from firsthand_onboard.signals import OUT_OF_RANGE, SPIKE, STUCK, find_row_faults, find_spikes, find_stuck_sensors

NO_HISTORY = "the rows before it, which its state needs, are missing"
NO_SUCCESSOR = "nothing was measured one period later"


@dataclass(frozen=True)
class Series:
    """A stretch of a log, one row per control period, without a gap."""

    measured: Float[np.ndarray, "rows measured"]
    """y_0 … y_T."""
    commands: Float[np.ndarray, "steps commands"]
    """u_0 … u_{T-1}; u_k was applied between y_k and y_{k+1}."""
    start: Float[np.ndarray, " state"] | None = None
    """The state vector at row 0, where the log carries it: with what was before."""

    def __post_init__(self) -> None:
        assert len(self.measured) == len(self.commands) + 1


class Transitions(NamedTuple):
    """Rows for the buffer."""

    states: Float[np.ndarray, "rows state"]
    """x."""
    commands: Float[np.ndarray, "rows commands"]
    """u, as applied."""
    following: Float[np.ndarray, "rows measured"]
    """y⁺."""


@dataclass(frozen=True)
class Log:
    """The content of one file or folder."""

    path: str
    """Where it was read from."""
    sha256: str
    """SHA-256 of the file's bytes; of a run folder, of all its episodes in order."""
    series: tuple[Series, ...]
    """The usable part, in order of time."""
    rows: int
    """Rows in the file."""
    refused: Counter[str] = field(default_factory=Counter)
    """Rows that cannot be used, by reason."""
    note: str = ""
    """Further notes for the user: resampled, columns ignored."""

    @property
    def usable(self) -> int:
        """Rows from which something can be learned: those with a successor."""
        return sum(len(s.commands) for s in self.series)


def transitions(spec: ControlSpec, log: Log) -> tuple[Transitions, Counter[str]]:
    """The rows for the buffer, with state vectors rebuilt by the robot's own rule; and refused rows by reason.

    Rows at the start of a stretch are refused unless the log carries the registers there: what was commanded before is
    part of the state.
    """
    memory = max(spec.layout.command_memory, spec.layout.measurement_memory)
    parts: list[Transitions] = []
    refused = Counter(log.refused)
    for series in log.series:
        steps = len(series.commands)
        if series.start is not None and series.start.shape == (spec.layout.size,):
            first, state = 0, series.start
        else:
            first = memory
            refused[NO_HISTORY] += min(memory, steps)
            if steps <= memory:
                continue
            state = _registers(spec, series, memory)
        states = [state]
        for k in range(first, steps - 1):
            states.append(next_state(spec.layout, states[-1], series.commands[k], series.measured[k + 1]))
        parts.append(Transitions(np.stack(states), series.commands[first:], series.measured[first + 1 :]))
    return _join(spec, parts), +refused


def _registers(spec: ControlSpec, series: Series, row: int) -> np.ndarray:
    """The state vector at `row`, from the rows before it."""
    layout = spec.layout
    measured = [series.measured[row - j] for j in range(1 + layout.measurement_memory)]
    return np.concatenate([*measured, *(series.commands[row - j] for j in range(1, 1 + layout.command_memory))])


def _join(spec: ControlSpec, parts: Sequence[Transitions]) -> Transitions:
    widths = (spec.layout.size, spec.layout.num_commands, spec.layout.num_measured)
    empty = Transitions(*(np.zeros((0, width), np.float32) for width in widths))
    return Transitions(
        *(np.concatenate(columns).astype(np.float32) for columns in zip(empty, *parts, strict=True)),
    )


def pieces(usable: np.ndarray, joined: np.ndarray) -> list[slice]:
    """Where usable rows follow one another; `joined[k]` tells whether row k + 1 follows row k without a gap."""
    rows = np.flatnonzero(usable)
    if not rows.size:
        return []
    ends = np.flatnonzero((np.diff(rows) > 1) | ~joined[rows[:-1]])
    return [
        slice(int(rows[a]), int(rows[b]) + 1) for a, b in zip([0, *(ends + 1)], [*ends, len(rows) - 1], strict=True)
    ]


def mark_strange(
    spec: ControlSpec, measured: np.ndarray, joined: np.ndarray, faults: np.ndarray, *, on_the_period: bool = True
) -> None:
    """Write into `faults` which rows hold a spike or a stuck sensor, found as in the robot's own episodes.

    What is usual is taken from the stretch that a row lies in. A stuck sensor is only looked for on the control period.
    """
    for piece in pieces((faults == "") | (faults == OUT_OF_RANGE), joined):
        rows = measured[None, piece]
        if on_the_period:
            faults[piece][find_stuck_sensors(spec, rows)[0]] = STUCK
        faults[piece][find_spikes(spec, rows, np.ones((1, rows.shape[1] - 1), bool))[0]] = SPIKE


def stretches(
    spec: ControlSpec, measured: np.ndarray, commands: np.ndarray, joined: np.ndarray, refused: Counter[str]
) -> tuple[Series, ...]:
    """Cut rows into stretches without a gap; counts in `refused` what is left out.

    `joined[k]` tells whether row k + 1 follows one control period after row k. The last row of a stretch only ends it.
    """
    faults = find_row_faults(spec, measured, commands)
    mark_strange(spec, measured, joined, faults)
    # The last row of a stretch needs no sound command: only its measurement is used.
    can_end = (faults == "") | (faults == OUT_OF_RANGE)
    for reason, count in Counter(faults[faults != ""].tolist()).items():
        refused[reason] += count
    found: list[Series] = []
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    begin = 0
    while begin < len(measured):
        end = begin
        while end < len(measured) - 1 and faults[end] == "" and joined[end] and can_end[end + 1]:
            end += 1
        if end > begin:
            kept = np.clip(commands[begin:end], low, high).astype(np.float32)
            found.append(Series(measured[begin : end + 1].astype(np.float32), kept))
        if faults[end] == "":
            refused[NO_SUCCESSOR] += 1
        begin = end + 1
    return tuple(found)


def first_line(error: Exception) -> str:
    """What a library says about a damaged file, without the rest of its lines."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
