"""`firsthand compare`."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from firsthand.errors import UserError

from .jobs import INTERRUPTED, check_runner, make_pool, print_findings, run_studies

if TYPE_CHECKING:
    from firsthand.robots.registry import NamedRobot

    from ..baselines.direct_comparison import DirectStudy
    from ..experiments.base import Finding
    from ..experiments.study import Study

_Whole = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
_Switch = Annotated[bool, arg(help_behavior_hint="")]
PEERS = "pid,deepc,koopman,neural-mpc,residual,crossq,ppo,sac,dreamerv3,tdmpc2,imagination"
LONG_H = 12.0
"""A comparison that takes longer is run only with --yes."""


@dataclass(frozen=True)
class Compare:
    """Ours and other ways to control a robot, side by side, after equal robot time."""

    robot: Annotated[Positional[str], arg(metavar="ROBOT", help_behavior_hint="")]
    """A simulated robot: excavator, excavator-pressure, excavator-realistic, soft-arm. With pid, paper,
    deepc, koopman, neural-mpc and residual alone, any robot that can be run: my_robot.py:task, too."""
    peers: Annotated[str, arg(metavar="NAMES")] = PEERS
    """Comma-separated. crossq, simba, dreamerv3 and tdmpc2 have settings that two cores can bear; with :default they
    are the published ones (an hour to days)."""
    episodes: Annotated[int, arg(metavar="N")] = 40
    """Robot time for each of them."""
    seeds: Annotated[int, arg(metavar="N")] = 3
    """Random seeds; the :default ones get one. More can be added later."""
    tiny: _Switch = False
    """The smallest form, which the tests run: everything happens, nothing is learned. Not for robots of your own."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Folder for data, figures and the table; by default experiments/compare-ROBOT. The same command continues what was
    interrupted; the table shows all that is in the folder, of other commands too."""
    so_far: _Switch = False
    """Run nothing: make the figures and the table of what is there, unfinished runs included."""
    on: Annotated[Literal["local", "ray"], arg(metavar="local|ray")] = "local"
    """Processes on this machine, or a Ray cluster."""
    address: Annotated[str | None, arg(metavar="ADDRESS", help_behavior_hint="")] = None
    """The Ray cluster: host:port, ray://host:port or auto; without it a small one is started on this machine."""
    workers: _Whole = None
    """Jobs at a time; by default one per core."""
    yes: _Switch = False
    """Go on although it takes more than 12 hours."""
    on_hardware: _Switch = False
    """Compare on a robot that moves something real: it is moved by each way to control it in turn, with every seed."""

    def run(self) -> int:
        """Run, conclude, print the table. Running it again continues."""
        from firsthand.console import notify
        from firsthand.robots.user_file import approve_robot

        from ..baselines.compare import PeerComparison, PeerStudy
        from ..baselines.registry import select_peers
        from ..baselines.setup import has_plant, plant_and_task
        from ..experiments.base import Size
        from ..experiments.run import default_folder

        peers = select_peers(self.peers)
        if self.episodes < 1:
            raise UserError(f"episodes is {self.episodes}, but must be at least 1.")
        check_runner(self.seeds, self.workers, self.on, self.address)
        approve_robot(self.robot)
        if not has_plant(self.robot):
            return self._run_directly()
        _, task = plant_and_task(self.robot, tiny=self.tiny)
        comparison = PeerComparison(self.robot, task, peers, self.episodes)
        size = Size("tiny" if self.tiny else "full", self.seeds)
        folder = self.out or default_folder(comparison.name, size.name)
        study = PeerStudy(folder, comparison, size)
        if self.so_far:
            if not study.path.is_dir():
                raise UserError(f"there is no folder {folder} yet: run the same command without --so-far.")
            print_findings([study], {comparison.name: study.conclude()})
            return 0
        self._ask(study)
        if len(peers) == 1:
            raise UserError(f"peers is {self.peers!r}, but must name at least one besides ours.")
        for peer in peers:
            peer.require(task, 10**6 if self.tiny else self.episodes)  # tiny shortens what takes time
        with study:
            notify(f"{comparison.name}, {self.episodes} episodes each, into {folder}")
            findings = run_studies(
                [study], lambda jobs: make_pool(jobs, self.workers, self.on, self.address), self._again()
            )
        if isinstance(findings, int):
            return findings
        print_findings([study], findings)
        return 0

    def _run_directly(self) -> int:
        """On a robot that is not a plant of ours: every way is run on the robot itself."""
        from firsthand.console import notify
        from firsthand.robots.registry import find_robot

        from ..baselines import episodic
        from ..baselines.direct_comparison import DIRECT, EPISODIC, DirectComparison, DirectStudy
        from ..experiments.base import Size
        from ..experiments.run import default_folder

        names = [name.strip() for name in self.peers.split(",") if name.strip()]
        if not set(names) <= set(DIRECT):
            others = ", ".join(name for name in names if name not in DIRECT)
            raise UserError(
                f"{self.robot} can be compared with {', '.join(DIRECT[:-1])} and {DIRECT[-1]} only; leave {others} out "
                "of --peers. The "
                "other peers learn on simulations of firsthand's own."
            )
        if self.tiny:
            raise UserError(f"--tiny is there for robots of firsthand's own, not for {self.robot}; leave it out.")
        found = find_robot(self.robot, approve=True)
        comparison = DirectComparison(found, names, self.episodes)
        folder = self.out or default_folder(comparison.name, "full")
        study = DirectStudy(folder, comparison, Size("full", self.seeds))
        if self.so_far:
            if not study.path.is_dir():
                raise UserError(f"there is no folder {folder} yet: run the same command without --so-far.")
            print_direct(study, study.conclude())
            return 0
        hardware = self._is_hardware(found)
        for name in set(names) & set(EPISODIC):
            episodic.require(name, found.task, 10**6)  # it takes its time, whatever is given
        self._ask(study)
        with study:
            notify(f"{comparison.name}, {self.episodes} episodes each, into {folder}")
            if hardware:
                findings = self._run_here(study)
            else:
                findings = run_studies(
                    [study], lambda jobs: make_pool(jobs, self.workers, self.on, self.address), self._again()
                )
        if isinstance(findings, int):
            return findings
        print_direct(study, findings[comparison.name])
        return 0

    def _is_hardware(self, found: "NamedRobot") -> bool:
        """Whether it moves something real; then it must have been asked for, with nothing beside it."""
        robot = found.make(seed=0)
        hardware = robot.hardware
        robot.close()
        if not hardware:
            return False
        if not self.on_hardware:
            raise UserError(f"{self.robot} moves something real; add --on-hardware to compare on it.")
        if self.on != "local" or (self.workers or 1) > 1:
            raise UserError(
                f"{self.robot} moves something real, which only one way to control it can do at a time; leave "
                "--workers and --on out."
            )
        return True

    def _run_here(self, study: "DirectStudy") -> "dict[str, Finding] | int":
        """On hardware: in this process, so that an interrupted run leaves the machine in neutral."""
        from firsthand.console import notify

        from ..experiments.worker import perform

        try:
            for job in study.jobs:

                def report(done: float, note: str = "", name: str = job.name) -> None:
                    notify(f"{name}: episode {done:g}/{self.episodes} · {note}")

                if not study.is_finished(job):
                    perform(study.prepare(job), report)
        except KeyboardInterrupt:
            notify(f"Interrupted; finished jobs are kept. Continue with: {self._again()}")
            return INTERRUPTED
        except UserError as error:
            raise UserError(f"{error} Finished jobs are kept; continue with: {self._again()}") from error
        return {study.experiment.name: study.conclude()}

    def _ask(self, study: "Study") -> None:
        """Raise `UserError` if the remaining jobs take very long and were not confirmed."""
        from ..experiments.worker import cores

        left = [job.steps * job.weight for job in study.jobs if not study.is_finished(job)]
        if self.tiny or self.yes or not left:
            return
        here = self.on == "local" or self.address is None
        at_once = min(self.workers or cores(), cores()) if here else self.workers or len(left)
        hours = max(max(left), sum(left) / at_once) / 3600
        if hours > LONG_H:
            where = " on this machine" if here else ""
            raise UserError(
                f"this takes about {hours:.0f} hours{where}: use fewer --episodes, --seeds or --peers, or add --yes."
            )

    def _again(self) -> str:
        """The command that continues, for copying."""
        words = ["firsthand", "compare", self.robot, "--peers", self.peers]
        words += ["--episodes", str(self.episodes), "--seeds", str(self.seeds)]
        words += ["--tiny"] if self.tiny else []
        for name in ("out", "address", "workers"):
            if getattr(self, name) is not None:
                words += [f"--{name}", str(getattr(self, name))]
        words += ["--on", self.on] if self.on != "local" else []
        words += ["--yes"] if self.yes else []
        words += ["--on-hardware"] if self.on_hardware else []
        return shlex.join(words)


def print_direct(study: "DirectStudy", finding: "Finding") -> None:
    """Errors of tests after equal robot time, as a table."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    columns = finding.summary[0]
    table = Table(title=escape(study.comparison.task.name), box=SIMPLE_HEAD, pad_edge=False)
    for heading in columns:
        is_text = heading in (next(iter(columns)), "notes")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=heading != "notes")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(escape, row))
    console = Console()
    console.print(table)
    console.print(finding.text, style="dim", highlight=False, markup=False)
    console.print(f"Written: {study.path / 'finding.md'}", highlight=False, markup=False, soft_wrap=True)
