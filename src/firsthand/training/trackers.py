"""Experiment trackers: the metrics of a run sent to MLflow or Weights & Biases while it trains.

A tracker is a callback. What it needs of a service is four functions, `Service`; a tracker of your own is a class with
these. A tracker that cannot be reached stops nothing: training goes on, and the user is told once. The run's folder has
every number in any case.
"""

import importlib.util
import numbers
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ..errors import UserError, how_to_install, suggest
from .parts import Callback, EpisodeSummary


class Service(Protocol):
    """What is needed of a tracking service. Whatever its functions raise is reported once, and stops nothing."""

    name: str
    """As the user calls it."""

    def start(self, run: str, settings: Mapping[str, Any]) -> None:
        """Begin, or take up again, the run of this name."""
        ...

    def log(self, episode: int, values: Mapping[str, float]) -> None:
        """Numbers of one episode."""
        ...

    def finish(self) -> None:
        """The run is over, or interrupted."""
        ...


class MlflowService:
    """MLflow. Where to is MLflow's own setting, `MLFLOW_TRACKING_URI`; without it a file in the run's folder."""

    name = "mlflow"
    package = "mlflow-skinny"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._client: Any = None
        self._run = ""

    def start(self, run: str, settings: Mapping[str, Any]) -> None:
        """A run with this name in the experiment `firsthand`; the same one when training is resumed."""
        import os

        from mlflow.tracking import MlflowClient  # pyright: ignore[reportMissingImports]

        if not os.environ.get("MLFLOW_TRACKING_URI"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer releases ask for it
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (self.folder / "mlflow").resolve().as_uri()
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name("firsthand")
        experiment = found.experiment_id if found else self._client.create_experiment("firsthand")
        wanted = f"tags.folder = '{_quote(str(self.folder.resolve()))}'"
        earlier = self._client.search_runs([experiment], wanted, max_results=1)
        if earlier:
            self._run = earlier[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {"mlflow.runName": run, "folder": str(self.folder.resolve())}
        self._run = self._client.create_run(experiment, tags=tags).info.run_id
        for name, value in settings.items():
            self._client.log_param(self._run, name, value)

    def log(self, episode: int, values: Mapping[str, float]) -> None:
        """A metric each, at the episode as step."""
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=episode)

    def finish(self) -> None:
        """Close the run."""
        self._client.set_terminated(self._run)


class WandbService:
    """Weights & Biases. `WANDB_MODE=offline` keeps everything in the run's folder, for `wandb sync` later."""

    name = "wandb"
    package = "wandb"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run: Any = None

    def start(self, run: str, settings: Mapping[str, Any]) -> None:
        """A run with this name in the project of `WANDB_PROJECT`, or `firsthand`."""
        import hashlib
        import os

        import wandb  # pyright: ignore[reportMissingImports]

        identity = hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:16]
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "firsthand"),
            name=run,
            id=identity,
            resume="allow",
            dir=str(self.folder),
            config=dict(settings),
        )

    def log(self, episode: int, values: Mapping[str, float]) -> None:
        """All numbers of an episode, at it as step."""
        self._run.log(dict(values), step=episode)

    def finish(self) -> None:
        """Close the run."""
        self._run.finish()


SERVICES: dict[str, Callable[[Path], Any]] = {"mlflow": MlflowService, "wandb": WandbService}


def check_tracker(name: str) -> None:
    """Raise `UserError` where a tracker is not known or its package is missing."""
    if name not in SERVICES:
        raise UserError(f"track is {name!r}{suggest(name, tuple(SERVICES))}, but must be one of {', '.join(SERVICES)}.")
    if importlib.util.find_spec(name) is None:
        raise UserError(f"tracking with {name} needs its package: {how_to_install(name)}.")


class Tracker(Callback):
    """Sends every number of metrics.jsonl to a service, over episodes. For a `with`.

    Args:
        service: where to.
        run: what the run is called there.
        settings: what it is made with; nested names are joined with dots.
        read_metrics: the lines so far, for a service that has to catch up.
        notify: how the user is told.
    """

    def __init__(
        self,
        service: Service,
        run: str,
        settings: Mapping[str, Any],
        read_metrics: Callable[[], Iterable[Mapping[str, Any]]],
        notify: Callable[[str], None],
    ) -> None:
        self.service, self.run, self.settings = service, run, flatten(settings)
        self.read_metrics, self._notify = read_metrics, notify
        self.reachable = True

    def __enter__(self) -> "Tracker":
        self._try(self.service.start, self.run, self.settings)
        for line in self.read_metrics():
            self._log(line)
        return self

    def __exit__(self, *_: object) -> None:
        self._try(self.service.finish)

    def after_episode(self, summary: EpisodeSummary) -> None:
        """Send the episode."""
        self._log(summary.metrics)

    def _log(self, line: Mapping[str, Any]) -> None:
        values = {
            name: float(value)
            for name, value in line.items()
            if name != "episode" and isinstance(value, numbers.Real)  # also true and false; null is left out
        }
        self._try(self.service.log, line["episode"], values)

    def _try(self, do: Callable[..., None], *arguments: Any) -> None:
        """Once it has failed it is left alone: a service that answers late would hold up a robot."""
        if not self.reachable:
            return
        try:
            do(*arguments)
        except Exception as error:  # whatever a service and its network raise
            self.reachable = False
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._notify(f"{self.service.name} cannot be reached ({why}); training goes on, the run's folder has all.")


def flatten(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings as one level: `{"a": {"b": 1}}` becomes `{"a.b": 1}`. What is empty is left out."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{before}{name}.")
        elif value is not None and value != () and value != []:
            found[f"{before}{name}"] = value if isinstance(value, int | float | str) else str(value)
    return found


def _quote(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
