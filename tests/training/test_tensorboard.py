import math
import struct
from pathlib import Path

import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.robots import EpisodeRecord
from firsthand.training.parts import EpisodeSummary
from firsthand.training.tensorboard import EventFiles


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard would show: a record is a length, its checksum, an event, and the event's checksum."""
    from tensorboardX.proto import event_pb2

    event_type = vars(event_pb2)["Event"]  # made at run time by protobuf

    found: dict[str, list[tuple[int, float]]] = {}
    (path,) = folder.glob("events.out.tfevents.*")
    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = event_type.FromString(data[at + 12 : at + 12 + length])
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
        at += 16 + length
    return found


def line(episode: int, error: float | None) -> dict:
    return {"episode": episode, "tracking_error": error, "update_accepted": True, "note": "words are not scalars"}


def write(folder: Path, *lines: dict) -> None:
    with EventFiles(folder, lambda: lines):
        pass


def test_earlier_episodes_and_new_ones_are_there_at_once(tmp_path: Path) -> None:
    still = np.zeros((1, 2, 1), np.float32)
    record = EpisodeRecord.complete(np.zeros((1, 1), np.float32), still, still[:, :1], still)
    with EventFiles(tmp_path, lambda: [line(1, 2.5), line(2, None)]) as events:
        events.after_episode(EpisodeSummary(3, line(3, 0.25), record))
        assert scalars(tmp_path) == {
            "tracking_error": [(1, 2.5), (3, 0.25)],
            "update_accepted": [(1, 1.0), (2, 1.0), (3, 1.0)],
        }


def test_writing_again_leaves_nothing_of_what_a_run_has_dropped(tmp_path: Path) -> None:
    write(tmp_path, line(1, 2.5), line(2, 1.0))
    write(tmp_path, line(1, 2.5), line(2, 0.5))
    assert scalars(tmp_path)["tracking_error"] == [(1, 2.5), (2, 0.5)]


def test_infinite_numbers_do_not_stop_it(tmp_path: Path) -> None:
    write(tmp_path, line(1, math.inf))
    assert scalars(tmp_path)["tracking_error"] == [(1, math.inf)]


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("")
    with pytest.raises(UserError, match="tensorboard"):
        write(tmp_path / "tensorboard")
