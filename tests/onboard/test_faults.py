"""The latch of faults on disk, also when its file is damaged."""

import json
from pathlib import Path

import pytest

from firsthand_onboard.faults import FaultLatch


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
     '{"fault": "x", "number": NaN}', '{"fault": "x", "number": "many"}', "[" * 100_000, '{"a":' * 100_000, "\x00"],
)  # fmt: skip
def test_a_damaged_latch_file_is_a_fault_with_a_clear_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "fault.json"
    path.write_text(text)
    latch = FaultLatch(path)
    assert latch.is_set
    assert f"the latch file {path} is damaged" in latch.fault
    latch.set("next")  # and it goes on counting
    assert json.loads(path.read_text()) == {"fault": "next", "number": 1}


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
