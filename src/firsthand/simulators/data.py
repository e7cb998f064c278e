"""Stretches of logs as arrays that windows are cut from, split into what is learned from and what is held out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..logs import Series

BLOCK_S = 20.0
"""Data is held out in blocks of this length, so that windows of several seconds fit."""
HELD_OUT = 8
"""One block in this many is held out."""


class Windows(NamedTuple):
    """All rows one after the other, and where each stretch is."""

    measured: Float[np.ndarray, "rows measured"]
    """y."""
    commands: Float[np.ndarray, "rows commands"]
    """u; the row at the end of a stretch has none and holds zeros."""
    begins: Int[np.ndarray, " stretches"]
    """First row of each stretch."""
    ends: Int[np.ndarray, " stretches"]
    """Last row of each stretch, which only ends it."""

    @staticmethod
    def of(series: Sequence[Series]) -> "Windows":
        """The stretches of several logs."""
        lengths = np.asarray([len(s.measured) for s in series])
        begins = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(int)
        commands = [np.concatenate([s.commands, np.zeros_like(s.commands[:1])]) for s in series]
        return Windows(
            np.concatenate([s.measured for s in series]).astype(np.float32),
            np.concatenate(commands).astype(np.float32),
            begins,
            begins + lengths - 1,
        )

    def starts(self, history: int, ahead: int, every: int = 1) -> Int[np.ndarray, " windows"]:
        """Rows k with `history` rows before and `ahead` rows after them in the same stretch."""
        rows = [np.arange(a + history, b - ahead + 1, every) for a, b in zip(self.begins, self.ends, strict=True)]
        return np.concatenate(rows).astype(int) if rows else np.zeros(0, int)


def split(series: Sequence[Series], period_s: float) -> tuple[list[Series], list[Series]]:
    """(to learn from, held out): one block of `BLOCK_S` in `HELD_OUT`, spread over the whole log."""
    block = max(round(BLOCK_S / period_s), 2)
    learned: list[Series] = []
    held: list[Series] = []
    number = 0
    for one in series:
        begin = 0
        for a in range(0, len(one.commands), block):
            b = min(a + block, len(one.commands))
            if number % HELD_OUT == HELD_OUT // 2:
                if a > begin:
                    learned.append(_part(one, begin, a))
                held.append(_part(one, a, b))
                begin = b
            number += 1
        if begin < len(one.commands):
            learned.append(_part(one, begin, len(one.commands)))
    return learned, held


def _part(series: Series, begin: int, end: int) -> Series:
    return Series(series.measured[begin : end + 1], series.commands[begin:end])
