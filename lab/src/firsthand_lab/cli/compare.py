"""`firsthand compare`."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from firsthand.errors import UserError

from .jobs import check_runner, make_pool, print_findings, run_studies

if TYPE_CHECKING:
    from ..baselines.direct import Books
    from ..experiments.study import Study

_Whole = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
_Switch = Annotated[bool, arg(help_behavior_hint="")]
PEERS = "pid,deepc,koopman,neural-mpc,residual,crossq,ppo,sac,dreamerv3,tdmpc2,imagination"
DIRECT = ("pid", "paper", "deepc", "koopman", "neural-mpc", "residual")
"""Peers that need nothing but a robot that can be run."""
EPISODIC = ("deepc", "koopman", "neural-mpc", "residual")
"""Those that propose a controller per episode."""
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
    """The smallest form, which the tests run: everything happens, nothing is learned."""
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
    """Compare on a robot that moves something real: it is inspected, and moved by each way to control it in turn."""

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
        """On a robot that is not a plant of ours, one way after the other; the table is printed, nothing is kept."""
        from firsthand.console import notify
        from firsthand.robots.registry import find_robot
        from firsthand.training import TrainingConfig

        from ..baselines import direct, episodic

        names = [name.strip() for name in self.peers.split(",") if name.strip()]
        if not set(names) <= set(DIRECT):
            others = ", ".join(name for name in names if name not in DIRECT)
            raise UserError(
                f"{self.robot} can be compared with {', '.join(DIRECT[:-1])} and {DIRECT[-1]} only; leave {others} out "
                "of --peers. The "
                "other peers learn on simulations of firsthand's own."
            )
        found = find_robot(self.robot, approve=True)
        for name in set(names) & set(EPISODIC):
            episodic.require(name, found.task, 10**6)  # it takes its time, whatever is given
        marks = tuple(sorted({max(self.episodes // 4, 1), max(self.episodes // 2, 1), self.episodes}))
        books = {}
        for name in ("ours", *names):
            robot = found.make(seed=0)
            try:
                if robot.hardware and not self.on_hardware:
                    raise UserError(f"{self.robot} moves something real; add --on-hardware to compare on it.")
                unit = robot.task.unit

                def on_episode(episode: int, error: float, name: str = name, unit: str = unit) -> None:
                    notify(f"{name}: episode {episode}/{self.episodes} · error {error:.3g} {unit}")

                if name == "pid":
                    books[name] = direct.tune(robot, self.episodes, marks, 0, on_episode)
                elif name in EPISODIC:
                    learner = episodic.make_learner(name, found.name, robot.task, seed=0, episodes=self.episodes)
                    books[name] = direct.learn_episodes(robot, learner, self.episodes, marks, 0, on_episode)
                else:
                    preset = "fast" if name == "ours" else name
                    config = TrainingConfig.of(found.name, preset, episodes=self.episodes)
                    books[name] = direct.learn(robot, config, marks, on_episode)
            finally:
                robot.close()
        print_books(found.task.name, found.task.unit, books)
        return 0

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
        return shlex.join(words)


def print_books(robot: str, unit: str, books: "dict[str, Books]") -> None:
    """Errors of tests after equal robot time, as a table."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    marks = sorted({test["episode"] for book in books.values() for test in book.tests})
    table = Table(title=f"{escape(robot)}: mean error, {escape(unit)}", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for mark in marks:
        table.add_column(f"episode\n{mark}", justify="right")
    table.add_column("robot\nmin", justify="right")
    table.add_column("")
    for name, book in books.items():
        errors = {test["episode"]: f"{test['error']:.3g}" for test in book.tests}
        cells = [errors.get(mark, "–") for mark in marks]
        table.add_row(name, *cells, f"{book.robot_min:.1f}", escape(book.notes))
    console = Console()
    console.print(table)
    console.print(
        "On held-out goals; a step that the robot did not get to counts as if it stood where it ended.",
        style="dim",
    )
