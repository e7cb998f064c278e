"""`firsthand experiment`."""

import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from firsthand.errors import UserError

from .jobs import check_runner, make_pool, print_findings, run_studies

_Whole = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
_Switch = Annotated[bool, arg(help_behavior_hint="")]


@dataclass(frozen=True)
class Experiment:
    """Repeat a figure or table of the paper on our robots, and say whether its claim holds."""

    name: Annotated[Positional[str | None], arg(metavar="NAME", help_behavior_hint="")] = None
    """The experiment (see --list), or all."""
    list: _Switch = False
    """Name the experiments, what each shows and what it takes."""
    quick: _Switch = False
    """A small form: shorter runs and fewer seeds."""
    tiny: _Switch = False
    """The smallest form, which the tests run: everything happens, nothing is learned."""
    seeds: _Whole = None
    """How many random seeds; by default what --list says."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Folder for data, figures and the finding; by default experiments/NAME or experiments/NAME-quick. The same command
    continues what was interrupted."""
    on: Annotated[Literal["local", "ray"], arg(metavar="local|ray")] = "local"
    """Processes on this machine, or a Ray cluster."""
    address: Annotated[str | None, arg(metavar="ADDRESS", help_behavior_hint="")] = None
    """The Ray cluster: host:port, ray://host:port or auto; without it a small one is started on this machine."""
    workers: _Whole = None
    """Jobs at a time; by default one per core."""
    so_far: _Switch = False
    """Run nothing: show what is there of an experiment that goes on, or was interrupted."""

    def run(self) -> int:
        """Run, conclude, print the findings. Running it again continues."""
        from firsthand.console import notify

        from ..experiments import registry
        from ..experiments.base import Size
        from ..experiments.run import default_folder
        from ..experiments.study import Study, claim

        if self.list:
            _print_list(registry.every())
            return 0
        if self.name is None:
            raise UserError("which experiment? `firsthand experiment --list` names them.")
        self._check()
        experiments = registry.every() if self.name == "all" else [registry.find(self.name)]
        size = "tiny" if self.tiny else "quick" if self.quick else "full"
        sizes = [Size(size, e.seeds.of(size) if self.seeds is None else self.seeds) for e in experiments]
        folder = self.out or default_folder(self.name, size)
        if self.so_far and not folder.is_dir():
            raise UserError(f"there is no folder {folder} yet: run the same command without --so-far.")
        together = self.name == "all"
        if together:
            claim(folder, "all", size, self.seeds)
        with ExitStack() as stack:
            studies = [
                stack.enter_context(Study(folder / e.name if together else folder, e, s))
                for e, s in zip(experiments, sizes, strict=True)
            ]
            if self.so_far:
                print_findings(studies, {study.experiment.name: _conclude_so_far(study) for study in studies})
                return 0
            notify(f"{self.name}, {size} size, into {folder}")
            findings = run_studies(studies, self._pool, self._again())
        if isinstance(findings, int):
            return findings
        print_findings(studies, findings)
        if together:
            _write_summary(folder, studies, findings)
        return 0

    def _check(self) -> None:
        check_runner(self.seeds, self.workers, self.on, self.address)

    def _pool(self, jobs: int) -> Any:
        return make_pool(jobs, self.workers, self.on, self.address)

    def _again(self) -> str:
        """The command that continues, for copying."""
        words = ["firsthand", "experiment", self.name or ""]
        words += [f"--{name}" for name in ("quick", "tiny") if getattr(self, name)]
        for name in ("seeds", "out", "address", "workers"):
            if getattr(self, name) is not None:
                words += [f"--{name}", str(getattr(self, name))]
        if self.on != "local":
            words += ["--on", self.on]
        return shlex.join(words)


def _conclude_so_far(study: Any) -> Any:
    experiment = study.experiment
    if not experiment.partial:
        raise UserError(f"experiment is {experiment.name!r}, whose results mean something only together.")
    if not any(study.is_finished(job) for job in study.jobs):
        raise UserError(f"no job of {study.path} is finished yet.")
    return study.conclude(so_far=True)


def _print_list(experiments: Any) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it shows", min_width=14)
    table.add_column("in paper", min_width=8, max_width=10)
    table.add_column("core time,\n--quick", justify="right", no_wrap=True)
    table.add_column("seeds", justify="right", no_wrap=True)
    for e in experiments:
        time = f"{e.cost.full_min:.0f} min, {e.cost.quick_s:.0f} s"
        table.add_row(e.name, e.shows, e.figure, time, f"{e.seeds.full}, {e.seeds.quick}")
    Console().print(table)


def _write_summary(folder: Path, studies: Any, findings: Any) -> None:
    """One line per experiment, for `all`."""
    from firsthand.runs import atomic

    lines = ["# All experiments", "", "| experiment | in the paper | verdict | |", "|---|---|---|---|"]
    for study in studies:
        e, finding = study.experiment, findings[study.experiment.name]
        lines.append(f"| [{e.name}]({e.name}/finding.md) | {e.figure} | {finding.verdict.value} | {e.shows} |")
    atomic.write_text(folder / "summary.md", "\n".join(lines) + "\n")
    verdicts = {study.experiment.name: findings[study.experiment.name].verdict.value for study in studies}
    atomic.write_json(folder / "summary.json", verdicts)
