"""A work session on the live page: read from its folder, drawn, and asked by a person in a real browser."""

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from firsthand.control import files
from firsthand.control.files import Event, Request
from firsthand.dashboard import work_charts
from firsthand.dashboard.control_reader import ControlReader
from firsthand.dashboard.follower import RunFollower
from firsthand.runs import RunFolder
from firsthand.runs.work_folder import NAME, WorkFolder, WorkInfo
from firsthand.training.work.control import WorkControl
from firsthand.training.work.standing import Standing
from firsthand.units import unit_of

from .processes import address_of, started, wait_for
from .test_browser import DESKTOP, PHONE, Person, browser  # noqa: F401 (a fixture)
from .test_follow import SPEC, config

TAG = "<img src=x onerror=alert(1)> {a}"


@pytest.fixture
def folder(tmp_path):
    with RunFolder.create(tmp_path / "run", config(), provenance={}) as run:
        info = WorkInfo(run.identity, SPEC.to_json(), 6, 30.0, True, "tcp/127.0.0.1:1", "2026-01-01T00:00:00+00:00")
        made, _ = WorkFolder.open(run.path / NAME, info)
        yield made
        made.close()


def write_blocks(folder: WorkFolder, count: int) -> None:
    for block in range(1, count + 1):
        line = {"error": 0.01 * block, "true_error": math.nan, "context": block % 9, "authority": 0.1 * (block % 3)}
        folder.lines.append({"block": block, **line, "base_alone": False, "taken_back": block == 3, "updates": 1})


class Session:
    """The part of a session that people talk to."""

    def __init__(self, folder: WorkFolder) -> None:
        context = SimpleNamespace(updates=2, standing=Standing(0.4, alone=False))
        self.learner: Any = SimpleNamespace(block=8, current=1, contexts={1: context}, base_alone=False)
        self.control = WorkControl(folder.path, "tcp/127.0.0.1:1", self.learner, self.choose)
        self.control.begin()

    def choose(self, alone: bool) -> None:
        self.learner.base_alone = alone
        self.control.mark("take_back", f"the base alone: {alone}")


def test_work_is_read_and_drawn(folder):
    run = RunFollower(folder.path.parent)
    run.poll()
    assert run.work.info == folder.info
    write_blocks(folder, 8)
    before = run.version
    files.atomic.make_own_folder(files.folder_of(folder.path))
    files.append_event(folder.path, Event(4, "take_back", TAG))
    run.poll()
    assert run.version > before
    assert work_charts.work_error_chart(run.work, unit_of("m"))["yAxis"]["name"] == "error (cm)"
    chart = work_charts.work_error_chart(run.work, None)
    names = [series["name"] for series in chart["series"]]
    assert names == ["all", *(f"conditions {number}" for number in range(9) if number)]
    assert chart["series"][0]["data"][3] == [2.0, 0.04]  # four blocks of half a minute
    assert chart["series"][0]["markLine"]["data"][0]["xAxis"] == 2.0
    assert [y for _, y in work_charts.authority_chart(run.work)["series"][0]["data"]][:3] == [10.0, 20.0, 0.0]
    json.dumps(chart, allow_nan=False)
    assert not run.work.alive
    assert run.address == "tcp/127.0.0.1:1"  # of the machine, which can be stopped from here

    folder.close()
    path = folder.path
    WorkFolder.open(path, folder.info, resume=False)[0].close()
    run.poll()
    assert run.work.blocks.columns["block"] == []
    (path / "work.json").write_text("{}")
    run.poll()
    assert "has the format None" in run.work.trouble()[0]


def test_a_session_that_was_killed_is_missed(folder, monkeypatch):
    session = Session(folder)
    run = RunFollower(folder.path.parent)
    wait_for(lambda: (run.poll(), run.work.alive)[1], "a sign of life")
    assert run.work.trouble() == []
    session.control._done.set()  # as a killed process: no last word
    session.control._thread.join()
    monkeypatch.setattr(ControlReader, "alive", False)
    assert "No sign of the work session" in run.work.trouble()[0]


def test_a_person_takes_the_base_back_and_gives_it_back(browser, compiled, folder):  # noqa: F811
    write_blocks(folder, 8)
    session = Session(folder)
    session.control.mark("conditions", TAG)
    with started(compiled / "processes", "dashboard", folder.path.parent) as server:
        person = Person(browser, address_of(server), DESKTOP)
        person.sees(".state", "at work")
        person.sees(".happened", TAG)
        person.sees(".panel-note", "conditions 1 · authority of the learned part 40 %")
        for name, alone in (("Base alone", True), ("Learned part too", False)):
            person.press(name)
            wait_for(lambda: (session.control.look(), session.learner.base_alone is alone)[1], name)  # noqa: B023
            person.sees(".happened", f"the base alone: {alone}")
        person.page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
        assert person.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    session.control.end()
    assert person.wrong == []
    answers = files.read_status(folder.path)
    assert answers is not None
    assert [answer["ok"] for answer in answers.answers] == [True, True]
    files.send(folder.path, Request("take_back", session.control.session))  # nobody is there any more
    assert session.learner.base_alone is False
