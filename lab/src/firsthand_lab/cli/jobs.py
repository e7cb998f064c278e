"""What `experiment` and `compare` share: where jobs run, and how findings are shown."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from firsthand.errors import UserError

if TYPE_CHECKING:
    from ..experiments.base import Finding
    from ..experiments.study import Study

FAILED, INTERRUPTED = 1, 130


def check_runner(seeds: int | None, workers: int | None, on: str, address: str | None) -> None:
    """Raise `UserError` for settings that make no sense, or a Ray that is not there."""
    if seeds is not None and seeds < 1:
        raise UserError(f"seeds is {seeds}, but must be at least 1.")
    if workers is not None and workers < 1:
        raise UserError(f"workers is {workers}, but must be at least 1.")
    if address is not None and on != "ray":
        raise UserError(f"address is {address!r}, but the jobs run on this machine; add --on ray.")
    if on == "ray":
        from ..experiments.cluster import require_ray

        require_ray(address)


def make_pool(jobs: int, workers: int | None, on: str, address: str | None) -> Any:
    """Where the jobs run."""
    from ..experiments.pool import LocalPool
    from ..experiments.worker import cores

    if on == "ray":
        from ..experiments.cluster import RayPool

        return RayPool(address, workers)
    return LocalPool(min(workers or cores(), jobs))


def run_studies(studies: Sequence["Study"], pool: Callable[[int], Any], again: str) -> "dict[str, Finding] | int":
    """The findings of the studies, or the exit code when jobs failed or somebody interrupted; `again` goes on."""
    from firsthand.console import notify

    from ..experiments.display import Display
    from ..experiments.run import JobsFailed, carry_out

    with Display() as display:
        try:
            return carry_out(list(studies), pool, display)
        except KeyboardInterrupt:
            notify(f"Interrupted; finished jobs are kept. Continue with: {again}")
            return INTERRUPTED
        except JobsFailed as failed:
            notify(f"firsthand: {failed} The other jobs are kept; try the rest again with: {again}")
            return FAILED


def print_findings(studies: Any, findings: Any) -> None:
    """The tables and texts of findings."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for study in studies:
        finding = findings[study.experiment.name]
        for columns in finding.summary:
            own = Table(box=SIMPLE_HEAD, pad_edge=False)
            for i, heading in enumerate(columns):
                own.add_column(heading, justify="right" if i else "left", no_wrap=i == 0)
            for row in zip(*columns.values(), strict=True):
                own.add_row(*row)
            console.print(own)
        table = Table(title=f"{study.experiment.name}: {finding.verdict.value}", box=SIMPLE_HEAD, pad_edge=False)
        for heading in ("", "measured", "paper", ""):
            table.add_column(heading)
        for row in finding.rows:
            verdict = "" if row.verdict is None else row.verdict.value
            table.add_row(row.quantity, row.measured, row.paper, verdict)
        console.print(table)
        console.print(finding.text, highlight=False, markup=False)
        console.print(f"Written: {study.path / 'finding.md'}", highlight=False, markup=False, soft_wrap=True)
