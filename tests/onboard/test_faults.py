"""The latch of faults on disk, also when its file is damaged."""

import json
import os
from pathlib import Path

import pytest

from firsthand_onboard.faults import CRASHED, FaultLatch


def test_a_fault_survives_a_restart_until_it_is_cleared(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "fault.json"
    latch = FaultLatch(path)
    assert (latch.is_set, latch.fault, latch.number) == (False, "", 0)
    latch.set("first")
    latch.set("second")
    again = FaultLatch(path)
    assert (again.is_set, again.fault, again.number) == (True, "second", 2)
    again.clear()
    assert (again.is_set, again.fault, path.exists()) == (False, "", False)
    assert not FaultLatch(path).is_set


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"fault": "x"}', '{"fault": "x", "number": null}', '{"fault": "x", "number": Infinity}',
     '{"fault": "x", "number": NaN}', '{"fault": "x", "number": 1e300}', '{"fault": "x", "number": true}',
     '{"fault": "x", "number": -1}', '{"fault": "x", "number": 1%s}' % (400 * "0"),
     '{"fault": "x", "number": 1%s}' % (9000 * "0"), '{"fault": [], "number": 1}', '{"moving": 1, "number": 1}',
     '{"moving": true}', '{"fault": "%s", "number": 1}' % (99_999 * "x"),
     '{"fault": ' + 900 * "[" + 900 * "]" + ', "number": 1}', '"moving"',
     '{"fault": "x", "number": "many"}', "[" * 100_000, '{"a":' * 100_000, "\x00"],
)  # fmt: skip
def test_a_damaged_latch_file_is_a_fault_with_a_clear_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "fault.json"
    path.write_text(text)
    latch = FaultLatch(path)
    assert latch.is_set
    assert f"the latch file {path} is damaged" in latch.fault
    latch.set("next")  # and it goes on counting
    assert json.loads(path.read_text()) == {"fault": "next", "number": 1}


def test_a_program_that_was_killed_in_motion_needs_the_operator(tmp_path: Path) -> None:
    path = tmp_path / "fault.json"
    latch = FaultLatch(path)
    latch.begin_motion()
    killed = FaultLatch(path)
    assert (killed.is_set, killed.fault, killed.number) == (True, CRASHED, 1)
    latch.end_motion()
    assert not FaultLatch(path).is_set
    latch.begin_motion()
    latch.set("a joint is too far")
    latch.end_motion()  # the fault stays
    assert FaultLatch(path).fault == "a joint is too far"
    again = FaultLatch(path)
    again.begin_motion()  # nobody may move now: what was written stays
    assert FaultLatch(path).fault == "a joint is too far"
    assert FaultLatch(None).begin_motion() is None


def test_a_pipe_in_place_of_the_latch_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fault.json")
    assert "is damaged" in FaultLatch(tmp_path / "fault.json").fault
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert "is damaged" in FaultLatch(tmp_path / "zero").fault


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_what_is_no_text_is_a_fault_too(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "fault.json"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    assert FaultLatch(path).is_set


def test_a_disk_that_cannot_be_written_does_not_hide_the_fault(tmp_path: Path) -> None:
    (tmp_path / "fault.json.new").symlink_to("/dev/full")
    latch = FaultLatch(tmp_path / "fault.json")
    latch.set("moved")
    assert (latch.is_set, latch.fault) == (True, "moved")
