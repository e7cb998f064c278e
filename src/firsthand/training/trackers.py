"""Experiment trackers: the metrics of a run sent to MLflow or Weights & Biases while it trains.

A tracker is a callback. It needs a `Service`: a name and three functions; your own tracker is a class with these. They
run in a thread of their own, so a service that does not answer never delays a robot. If it cannot be reached, training
goes on and the user is told once; the run's folder has every number in any case.
"""

import importlib.util
import numbers
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ..errors import UserError, how_to_install, suggest
from .parts import Callback, EpisodeSummary


class Service(Protocol):
    """What is needed of a tracking service: all of it is called in one thread, which is not the robot's.

    Whatever its functions raise is reported once, and stops nothing.
    """

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

        # By itself it tries for minutes before it says that a server is not there.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
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

        if os.environ.get("WANDB_MODE", "online") == "online" and not _has_key(wandb):
            # It would ask for one at the terminal, in the middle of training.
            raise ConnectionError("no key: `wandb login`, or WANDB_MODE=offline")
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


def _has_key(wandb: Any) -> bool:
    """Whether Weights & Biases knows a key of the user; asks for none."""
    try:
        return bool(wandb.login(prompt=False))
    except TypeError:  # an older release, without `prompt`
        return bool(wandb.api.api_key)


SERVICES: dict[str, Callable[[Path], Any]] = {"mlflow": MlflowService, "wandb": WandbService}


def check_tracker(name: str) -> None:
    """Raise `UserError` where a tracker is not known or its package is missing."""
    if name not in SERVICES:
        raise UserError(f"track is {name!r}{suggest(name, tuple(SERVICES))}, but must be one of {', '.join(SERVICES)}.")
    if importlib.util.find_spec(name) is None:
        raise UserError(f"tracking with {name} needs its package: {how_to_install(name)}.")


PATIENCE_S = 30.0
"""Seconds that a service may take for one answer before the user is told, and before the end of a run stops waiting."""
MAX_REASON = 120
"""Characters of a service's own words that are shown."""


class Tracker(Callback):
    """Sends every number of metrics.jsonl to a service, over episodes. For a `with`.

    Args:
        service: where to.
        run: what the run is called there.
        settings: what it is made with; nested names are joined with dots.
        read_metrics: the lines so far, for a service that has to catch up.
        notify: how the user is told.
        patience_s: how long one answer may take.
    """

    def __init__(
        self,
        service: Service,
        run: str,
        settings: Mapping[str, Any],
        read_metrics: Callable[[], Iterable[Mapping[str, Any]]],
        notify: Callable[[str], None],
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.service, self.run, self.settings = service, run, flatten(settings)
        self.read_metrics, self._notify, self._patience_s = read_metrics, notify, patience_s
        self._told = False
        self._failure = ""
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._asked_at: float | None = None  # when the service was asked what it has not answered yet
        self._thread = threading.Thread(target=self._call_all, name=f"tracker {service.name}", daemon=True)

    def __enter__(self) -> "Tracker":
        self._thread.start()
        self._calls.put(lambda: self.service.start(self.run, self.settings))
        for line in self.read_metrics():
            self._log(line)
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.put(self.service.finish)
        self._calls.put(None)
        while self._thread.is_alive() and not self._is_late():
            self._thread.join(0.05)
        self._tell()

    def after_episode(self, summary: EpisodeSummary) -> None:
        """Send the episode."""
        self._log(summary.metrics)
        self._tell()

    def _log(self, line: Mapping[str, Any]) -> None:
        values = {
            name: float(value)
            for name, value in line.items()
            if name != "episode" and isinstance(value, numbers.Real)  # also true and false; null is left out
        }
        self._calls.put(lambda: self.service.log(line["episode"], values))

    def _call_all(self) -> None:
        """The thread: one call after the other. After one that failed the service is left alone."""
        while (call := self._calls.get()) is not None:
            self._asked_at = time.monotonic()
            try:
                call()
                self._asked_at = None
            except Exception as error:  # whatever a service and its network raise
                self._failure = (str(error).strip() or type(error).__name__).splitlines()[0]
                return

    def _is_late(self) -> bool:
        asked_at = self._asked_at
        return asked_at is not None and time.monotonic() - asked_at > self._patience_s

    def _tell(self) -> None:
        """Say once what is wrong, if anything; in the caller's thread."""
        late = self._thread.is_alive() and self._is_late()
        if self._told or not (self._failure or late):
            return
        self._told = True
        why = self._failure or f"no answer within {self._patience_s:g} s"
        why = why if len(why) <= MAX_REASON else f"{why[:MAX_REASON]}…"
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
