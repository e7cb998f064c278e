"""What a click means: what this browser shows, not what has become of it since."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

pytest.importorskip("nicegui")

from nicegui import Client, ui

from firsthand.dashboard.metrics import MetricsReader
from firsthand.dashboard.panels import Banners, HealthPanel
from firsthand.dashboard.requests import Requests
from firsthand.dashboard.state import PageState


def run(question: int | None, fault: int | None) -> Any:
    """A run whose trainer asks, and whose machine has a fault."""
    asked = None if question is None else {"number": question, "text": "go"}
    machine = {"state": "idle" if fault is None else "fault", "fault": "x", "fault_number": fault, "reachable": True}
    status = SimpleNamespace(question=asked, state="asking", ended=False, pid=1, host="here")
    metrics = SimpleNamespace(last=lambda name: 0.0, damaged_lines=0)
    work = SimpleNamespace(trouble=list)
    return SimpleNamespace(status=status, machine=machine, alive=True, problem="", metrics=metrics, work=work)


@pytest.fixture
def client():
    with Client(ui.page("/test")) as made:
        yield made


def test_what_is_acknowledged_and_approved_is_what_is_shown(client, monkeypatch):
    runs: Any = SimpleNamespace(followers={"run": run(3, 7)}, problem="")
    state = PageState(runs)
    requests = Requests(state)
    sent = AsyncMock()
    monkeypatch.setattr(requests, "send", sent)
    banners = Banners(state, requests)
    banners.refresh(state.run)
    assert banners.question.visible
    assert banners.fault.visible
    assert not banners.trouble.visible

    # There is another fault and another question, which this browser does not show yet.
    runs.followers["run"] = run(4, 8)
    asyncio.run(banners.press_acknowledge())
    asyncio.run(banners.decide("approve"))
    assert [call.args for call in sent.await_args_list] == [("acknowledge", 7), ("approve", 3)]

    sent.reset_mock()
    runs.followers["run"] = run(None, None)
    banners.refresh(state.run)
    assert not banners.question.visible
    assert not banners.fault.visible
    asyncio.run(banners.press_acknowledge())
    asyncio.run(banners.decide("reject"))
    sent.assert_not_awaited()


def test_advice_is_shown_as_text_and_urgent_advice_stands_out(client, tmp_path):
    tag = "<b onclick=alert(1)>arm</b>"
    lines = [
        {"episode": k, "velocity_delay": 1.0, "late_velocities": tag, "closed_loop_growth": 1.05} for k in range(1, 5)
    ]
    path = tmp_path / "metrics.jsonl"
    follower: Any = SimpleNamespace(metrics=MetricsReader(path), info=None)
    panel = HealthPanel()
    for count, texts in ((2, ["Advice begins with episode 3."]), (4, ["unstable", tag])):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines[:count]))
        follower.metrics.read()
        panel.refresh(follower)
        shown: list[Any] = list(panel.advice)
        assert [text in label.text for text, label in zip(texts, shown, strict=True)] == [True] * len(texts)
    assert ["advice-urgent" in label.classes for label in shown] == [True, False]


def test_a_choice_is_one_of_the_runs_and_begins_at_its_newest_episode():
    runs: Any = SimpleNamespace(followers={"a": run(None, None), "b": run(None, None)})
    state = PageState(runs)
    state.choose_episode(4)
    before = state.choices
    state.choose_run("../elsewhere")
    assert state.choices == before
    state.choose_run("b")
    assert (state.main, state.episode) == ("b", None)
    state.choose_compared(["../elsewhere"])
    assert list(state.compared_runs) == ["b"]
