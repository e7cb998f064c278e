"""The terminal that the user sees: one console for progress displays and for sentences between them."""

from rich.console import Console

console = Console(stderr=True)


def notify(text: str) -> None:
    """A sentence to the user; above the progress display while there is one."""
    # No markup: a folder may be called [this]. No wrapping: a command that is printed shall be copied in one piece.
    console.print(text, highlight=False, markup=False, soft_wrap=True)
