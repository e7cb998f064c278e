"""MLflow and Weights & Biases through one interface, against modules that stand in for theirs: both are heavy."""

import sys
import threading
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.robots import EpisodeRecord
from firsthand.training.parts import EpisodeSummary
from firsthand.training.trackers import MlflowService, Tracker, WandbService, check_tracker, flatten


class Listed:
    """A service that keeps what it is told, and can fail from a call on."""

    name = "listed"

    def __init__(self, fails_after: int = 10**9) -> None:
        self.calls: list[Any] = []
        self.left = fails_after

    def _call(self, *what: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("no route to host\nand more")
        self.calls.append(what)

    def start(self, run: str, settings: Mapping[str, Any]) -> None:
        self._call("start", run, dict(settings))

    def log(self, episode: int, values: Mapping[str, float]) -> None:
        self._call("log", episode, dict(values))

    def finish(self) -> None:
        self._call("finish")


def summary(episode: int) -> EpisodeSummary:
    still = np.zeros((1, 2, 1), np.float32)
    record = EpisodeRecord.complete(np.zeros((1, 1), np.float32), still, still[:, :1], still)
    return EpisodeSummary(episode, line(episode), record)


def line(episode: int) -> dict[str, Any]:
    return {"episode": episode, "tracking_error": 1 / episode, "update_accepted": True, "note": "words", "none": None}


def values(episode: int) -> dict[str, float]:
    return {"tracking_error": 1 / episode, "update_accepted": 1.0}


def test_a_service_gets_earlier_episodes_and_new_ones() -> None:
    service, told = Listed(), []
    settings = {"seed": 3, "model": {"hidden": (8, 8), "rate": 0.1}, "data": (), "init_from": None}
    with Tracker(service, "a run", settings, lambda: [line(1)], told.append) as tracker:
        tracker.after_episode(summary(2))
    flat = {"seed": 3, "model.hidden": "(8, 8)", "model.rate": 0.1}
    expected = [("start", "a run", flat), ("log", 1, values(1)), ("log", 2, values(2)), ("finish",)]
    assert service.calls == expected
    assert told == []
    assert flatten({"a": {"b": {"c": 1}}}) == {"a.b.c": 1}


@pytest.mark.parametrize("works_for", [0, 1, 2])
def test_a_service_that_cannot_be_reached_is_told_of_once(works_for: int) -> None:
    service, told = Listed(works_for), []
    with Tracker(service, "a run", {}, list, told.append) as tracker:
        for episode in (1, 2, 3):
            tracker.after_episode(summary(episode))
    assert told == ["listed cannot be reached (no route to host); training goes on, the run's folder has all."]
    assert len(service.calls) == works_for


def test_a_service_that_does_not_answer_holds_up_nothing() -> None:
    answer, told = threading.Event(), []

    class Silent(Listed):
        def start(self, run: str, settings: Mapping[str, Any]) -> None:
            answer.wait()
            super().start(run, settings)

    service = Silent()
    with Tracker(service, "a run", {}, list, told.append, patience_s=0.0) as tracker:
        tracker.after_episode(summary(1))
    assert told == ["listed cannot be reached (no answer within 0 s); training goes on, the run's folder has all."]
    assert service.calls == []
    answer.set()  # it answers after all, and gets everything
    tracker._thread.join(10.0)
    assert service.calls == [("start", "a run", {}), ("log", 1, values(1)), ("finish",)]


def test_wandb_without_a_key_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, told = types.ModuleType("wandb"), []
    vars(module).update(login=lambda *, prompt: prompt, init=lambda **_: pytest.fail("it would ask"))
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with Tracker(WandbService(tmp_path), "a run", {}, list, told.append):
        pass
    assert len(told) == 1
    assert "no key: `wandb login`, or WANDB_MODE=offline" in told[0]


def test_wandb_is_told_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Run:
        def log(self, content: dict[str, float], step: int) -> None:
            calls.append((step, content))

        def finish(self) -> None:
            calls.append("finish")

    def init(**options: Any) -> Run:
        calls.append(options)
        return Run()

    module = types.ModuleType("wandb")
    vars(module)["init"] = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    with Tracker(WandbService(tmp_path), "a run", {"seed": 1}, list, pytest.fail) as tracker:
        tracker.after_episode(summary(1))
    options, *rest = calls
    assert (options["project"], options["name"], options["resume"]) == ("firsthand", "a run", "allow")
    assert options["dir"] == str(tmp_path)
    assert options["config"] == {"seed": 1}
    assert rest == [(1, values(1)), "finish"]


class MlflowClient:
    """What is used of MLflow's client, in memory."""

    experiments: dict[str, str]
    runs: dict[str, dict[str, Any]]
    uri: str

    def __init__(self, tracking_uri: str) -> None:
        type(self).uri = tracking_uri

    def get_experiment_by_name(self, name: str) -> Any:
        found = self.experiments.get(name)
        return types.SimpleNamespace(experiment_id=found) if found else None

    def create_experiment(self, name: str) -> str:
        self.experiments[name] = "7"
        return "7"

    def search_runs(self, experiments: list[str], text: str, max_results: int) -> list[Any]:
        assert experiments == ["7"]
        assert max_results == 1
        return [run["entry"] for run in self.runs.values() if f"'{run['tags']['folder']}'" in text]

    def create_run(self, experiment: str, tags: dict[str, str]) -> Any:
        entry = types.SimpleNamespace(info=types.SimpleNamespace(run_id=f"run{len(self.runs)}"))
        self.runs[entry.info.run_id] = {"entry": entry, "tags": tags, "metrics": [], "status": "RUNNING"}
        return entry

    def log_param(self, run: str, name: str, value: Any) -> None:
        self.runs[run].setdefault("params", {})[name] = value

    def log_metric(self, run: str, name: str, value: float, step: int) -> None:
        self.runs[run]["metrics"].append((name, value, step))

    def update_run(self, run: str, status: str) -> None:
        self.runs[run]["status"] = status

    def set_terminated(self, run: str) -> None:
        self.runs[run]["status"] = "FINISHED"


def test_mlflow_keeps_one_run_also_when_training_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MlflowClient.experiments, MlflowClient.runs = {}, {}
    package, tracking = types.ModuleType("mlflow"), types.ModuleType("mlflow.tracking")
    vars(tracking)["MlflowClient"] = MlflowClient
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", tracking)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for episode in (1, 2):
        with Tracker(MlflowService(tmp_path), "a run", {"seed": 1}, list, pytest.fail) as tracker:
            tracker.after_episode(summary(episode))
    (run,) = MlflowClient.runs.values()
    assert vars(MlflowClient)["uri"] == (tmp_path / "mlflow").as_uri()
    assert run["params"] == {"seed": 1}
    assert run["metrics"] == [(name, value, k) for k in (1, 2) for name, value in values(k).items()]
    assert run["status"] == "FINISHED"


def test_a_tracker_that_is_not_known_or_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"'wandbb' \(did you mean 'wandb'\?\), but must be one of mlflow, wandb"):
        check_tracker("wandbb")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"tracking with mlflow needs its package: pip install .* -e '\.\[mlflow\]'"):
        check_tracker("mlflow")
