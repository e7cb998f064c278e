"""One trajectory: the robot moving along it, and the commands that made it move."""

from typing import Any

from nicegui import ui
from nicegui.element import Element

from .. import trajectory_charts
from ..follower import RunFollower
from ..state import PageState
from .elements import empty_chart, note, panel, row, show_chart


class Drawing(Element, component="drawing.js"):
    """The robot moving along a trajectory; play and scrub happen in the browser."""

    def show(self, data: dict[str, Any] | None) -> None:
        """Draw another trajectory."""
        self._props["data"] = data
        self.update()


class TrajectoryPanel:
    """The animated trajectory, and the choice of which."""

    def __init__(self, state: PageState) -> None:
        self.state = state
        with panel("Trajectory"):
            with row():
                self._number("episode", "newest").on_value_change(lambda e: state.choose_episode(e.value))
                self._number("trajectory", "last").on_value_change(lambda e: state.choose_trajectory(e.value))
                self.note = note()
            self.drawing = Drawing()
            note("dashed: reference · line: what the robot did")
            self.coordinates = empty_chart()

    @staticmethod
    def _number(label: str, placeholder: str) -> ui.number:
        number = ui.number(label=label, placeholder=placeholder, min=1, precision=0)
        return number.props("dense clearable stack-label debounce=400").style("width: 7.5rem")

    def refresh(self, run: RunFollower) -> None:
        """Show the newest data."""
        episode = self.state.episode
        motion = run.motion(episode, self.state.trajectory)
        self.drawing.show(trajectory_charts.drawing_data(run.info, motion))
        show_chart(self.coordinates, trajectory_charts.coordinate_chart(run.info, motion))
        self.coordinates.style(f"height: {trajectory_charts.coordinate_chart_height(run.info)}px")
        if motion is not None and run.info is not None:
            self.note.set_text(
                f"episode {motion.episode}, trajectory {motion.trajectory} of {motion.trajectories}: "
                f"{run.info.unit.with_unit(motion.error)} off on average"
            )
        else:
            self.note.set_text("" if episode is None else f"there is no episode {episode}")


class CommandPanel:
    """The commands of the drawn trajectory."""

    def __init__(self, state: PageState) -> None:
        self.state = state
        with panel("Commands of the drawn trajectory"):
            note("dashed: limits · dots: where the safety gate changed the command")
            self.chart = empty_chart()

    def refresh(self, run: RunFollower) -> None:
        """Show the newest data."""
        motion = run.motion(self.state.episode, self.state.trajectory)
        show_chart(self.chart, trajectory_charts.command_chart(run.info, motion))
        self.chart.style(f"height: {trajectory_charts.command_chart_height(run.info)}px")
