"""The terminal that the user sees: one console for progress displays and for sentences between them."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

console = Console(stderr=True)


def notify(text: str) -> None:
    """A sentence to the user; above the progress display while there is one."""
    # No markup: a folder may be called [this]. No wrapping: a command that is printed shall be copied in one piece.
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def progress_columns(before: Sequence[ProgressColumn], after: Sequence[ProgressColumn] = ()) -> list[ProgressColumn]:
    """A progress display's columns: those before the bar, the bar, those after it, the time spent and the time left."""
    times = (TimeElapsedColumn(), TextColumn("·"), TimeRemainingColumn(), TextColumn("left"))
    return [*before, BarColumn(bar_width=24), *after, *times]
