"""What one browser has chosen to look at."""

from collections.abc import Callable

from .echarts import PALETTE
from .follower import RunFollower
from .run_list import RunList


class PageState:
    """One browser's choices, all of them among the followed runs. Panels change it and call `refresh`."""

    def __init__(self, runs: RunList) -> None:
        self.runs = runs
        self.main = next(iter(runs.followers))
        """The name of the run that is controlled and drawn."""
        self.compared: set[str] = set(list(runs.followers)[: len(PALETTE)])
        """The names of the runs whose curves are shown."""
        self.episode: int | None = None
        """The episode that is drawn; None follows the newest."""
        self.trajectory: int | None = None
        """The trajectory of it; None is the last."""
        self.refresh: Callable[[], None] = lambda: None
        """Shows a changed choice at once; set by the page."""

    @property
    def run(self) -> RunFollower:
        """The run that is controlled and drawn."""
        return self.runs.followers[self.main]

    @property
    def names(self) -> list[str]:
        """The names of all runs."""
        return list(self.runs.followers)

    @property
    def compared_runs(self) -> dict[str, RunFollower]:
        """The runs whose curves are shown; the main one always is."""
        followers = self.runs.followers
        return {name: run for name, run in followers.items() if name in self.compared or name == self.main}

    @property
    def choices(self) -> tuple:
        """Changes when a person chooses something else."""
        return self.main, tuple(sorted(self.compared)), self.episode, self.trajectory

    @property
    def versions(self) -> tuple:
        """Changes when a run has something new to draw."""
        return tuple((name, follower.version) for name, follower in self.runs.followers.items())

    def choose_run(self, name: str) -> None:
        """Draw and control another run, from its newest episode."""
        if name in self.runs.followers and name != self.main:
            self.main, self.episode, self.trajectory = name, None, None
            self.refresh()

    def choose_compared(self, names: list[str] | None) -> None:
        """Show the curves of these runs."""
        self.compared = {name for name in names or () if name in self.runs.followers}
        self.refresh()

    def choose_episode(self, episode: float | None) -> None:
        """Draw another episode; None is the newest."""
        self.episode = None if episode is None else int(episode)
        self.refresh()

    def choose_trajectory(self, trajectory: float | None) -> None:
        """Draw another trajectory of the episode; None is the last."""
        self.trajectory = None if trajectory is None else int(trajectory)
        self.refresh()
