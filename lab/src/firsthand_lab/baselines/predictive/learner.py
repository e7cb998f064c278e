"""The procedure of `deepc` and `koopman` on a robot, episode by episode; all of it counts as robot time.

1. Five minutes of excitation; the map of the commands and the first law.
2. Its own episodes join the recording, and every setting is chosen anew after 1, 2, 4, 8 and 16 of them: data of the
   kind of motion that is wanted predict it better.
3. After the refit at 8 the weight on changes of command is tuned, an episode each, as pid's gains are: 1, 0.3, 0.1, …
   times the task's until the error rises, else 3 times it.
"""

import time
from collections.abc import Callable, Sequence

from firsthand.controllers import GainSearch
from firsthand.robots.base import AbstractRobot, EpisodeRecord
from firsthand.simulators.record import record
from firsthand.tasks import Task

from .controller import PredictiveController
from .design import Request, choose_deepc, choose_koopman, find_map, make_law
from .prediction import AbstractPredictor
from .recording import as_series, minutes_needed

FACTORS = (1.0, 0.3, 0.1, 0.03)
REFITS = (1, 2, 4, 8, 16)
CHOOSE: dict[str, tuple[str, Callable[[Request], AbstractPredictor]]] = {
    "deepc": ("data-enabled predictive control", choose_deepc),
    "koopman": ("Koopman predictive control", choose_koopman),
}


class PredictiveLearner:
    """Excites a robot, then proposes a controller per episode and learns from what came of it."""

    def __init__(self, name: str, task: Task, *, seed: int) -> None:
        self.task, self.seed = task, seed
        self.kind, self._choose = CHOOSE[name]
        self.episodes = 0
        """Of its own, after the excitation."""
        self.records: list[EpisodeRecord] = []
        self.robot_time_s = self.processor_time_s = 0.0
        self.updates = 0
        """Gradient steps: none are taken."""
        self._search: GainSearch | None = None

    def excite(self, robot: AbstractRobot) -> None:
        """Move the robot about, with its whole command range."""
        self.records = list(record(robot, minutes_needed(self.task.spec), seed=self.seed))
        began = time.process_time()
        series = as_series(self.task.spec, self.records)
        self.robot_time_s = len(series) * self.task.spec.period_s
        self._inputs = find_map(self.task, series)
        self._law = make_law(self.task, series, self._inputs, self._choose)
        self.processor_time_s = time.process_time() - began

    @property
    def factor(self) -> float:
        """On the weight of changes of command, in the next episode."""
        return FACTORS[0] if self._search is None else self._search.next_factor()

    def make(self) -> PredictiveController:
        """The controller of the next episode."""
        return PredictiveController(self._law, self.factor)

    def make_best(self) -> PredictiveController:
        """The best so far, for a test."""
        tuned = self._search is not None and self._search.errors
        return PredictiveController(self._law, self._search.best if self._search and tuned else FACTORS[0])

    def learn(self, records: Sequence[EpisodeRecord], error: float) -> None:
        """An episode with `make()` is over."""
        self.episodes += 1
        if self._search is not None:
            self._search.record(self.factor, error)
        if self.episodes <= REFITS[-1]:
            self.records += records
        if self.episodes in REFITS:
            series = as_series(self.task.spec, self.records)
            self._law = make_law(self.task, series, self._inputs, self._choose)
        if self.episodes == REFITS[-2]:
            self._search = GainSearch(FACTORS)

    @property
    def parameters(self) -> int:
        """Numbers that were learned."""
        return self._law.predictor.parameters

    @property
    def setting(self) -> str:
        """A summary of actions and choices, for people."""
        law = self._law
        bands = ", ".join(f"{d:.2g}/{u:.2g}" for d, u in zip(law.inputs.down, law.inputs.up, strict=True))
        best = self._search.best if self._search is not None and self._search.errors else FACTORS[0]
        return (
            f"{self.kind}: {self.robot_time_s / 60:.1f} min of excitation, settings chosen anew after "
            f"{', '.join(str(n) for n in REFITS if n <= self.episodes) or 'none'} of its own episodes, weight on "
            f"changes {best:g} × the task's; {law.predictor.settings}; correction {law.correction:g}; dead "
            f"bands {bands}"
        )
