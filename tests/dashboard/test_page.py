"""What a click means: what this browser shows, not what has become of it since."""

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock, MagicMock

import pytest

pytest.importorskip("nicegui")

from firsthand.dashboard.page import View

PARTS = ("question", "question_text", "fault", "fault_text", "acknowledge", "trouble", "trouble_text")


def run(question: int | None, fault: int | None) -> SimpleNamespace:
    """A run whose trainer asks, and whose machine has a fault."""
    asked = None if question is None else {"number": question, "text": "go"}
    machine = {"state": "idle" if fault is None else "fault", "fault": "x", "fault_number": fault, "reachable": True}
    status = SimpleNamespace(question=asked, state="asking", ended=False, pid=1, host="here")
    return SimpleNamespace(
        status=status, machine=machine, alive=True, problem="", damaged=0, last=lambda name: 0.0, about=None
    )


def test_what_is_acknowledged_and_approved_is_what_is_shown(monkeypatch):
    view = View(SimpleNamespace(followers={"run": run(3, 7)}, problem=""))  # pyright: ignore
    for part in PARTS:
        setattr(view, part, MagicMock())
    view._refresh_banners(view.run, view.run.status)
    asked = AsyncMock()
    monkeypatch.setattr(view, "ask", asked)

    # There is another fault and another question, which this browser does not show yet.
    view.runs.followers["run"] = run(4, 8)  # pyright: ignore
    asyncio.run(view.press_acknowledge())
    asyncio.run(view.decide("approve"))
    assert [call.args for call in asked.await_args_list] == [("acknowledge", 7), ("approve", 3)]

    asked.reset_mock()
    view.runs.followers["run"] = run(None, None)  # pyright: ignore
    view._refresh_banners(view.run, view.run.status)
    asyncio.run(view.press_acknowledge())
    asyncio.run(view.decide("reject"))
    asked.assert_not_awaited()
