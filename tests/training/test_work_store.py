"""What a work session keeps: a learner comes back bit for bit, and bad folders are refused in a sentence."""

import dataclasses
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from work_blocks import block_of_work, learner_of, on_base, with_memory

from firsthand.control import files
from firsthand.control.files import Request
from firsthand.errors import UserError
from firsthand.runs import work_folder
from firsthand.runs.pytrees import to_arrays
from firsthand.runs.work_folder import WorkFolder, WorkInfo
from firsthand.tasks import Task
from firsthand.training.work import WorkLearner
from firsthand.training.work.control import WorkControl
from firsthand.training.work.learner import Update
from firsthand.training.work.snapshot import restore_snapshot, take_snapshot
from firsthand.training.work.store import WorkStore


def info_of(task: Task, **changes: Any) -> WorkInfo:
    info = WorkInfo("f" * 64, task.spec.to_json(), 2, 1.0, False, "tcp/127.0.0.1:1", "2026-01-01T00:00:00+00:00")
    return info._replace(**changes)


def stored(path: Path, task: Task, said: list[str], **options: Any) -> WorkStore:
    return WorkStore(WorkFolder.open(path, info_of(task), **options)[0], said.append)


def everything(learner: WorkLearner) -> dict[str, np.ndarray]:
    """All that a learner has learned, found without the code that stores it."""
    fixed = ("task", "work", "on_base", "settings", "agent", "block_trajectories", "seed")
    own = {name: value for name, value in vars(learner).items() if name not in fixed}
    own["newest"] = [(record.arrays(), chunks) for record, chunks in learner.newest]
    own["contexts"] = {number: dict(vars(context)) for number, context in learner.contexts.items()}
    for context in own["contexts"].values():
        good, standing = context["good"], context["standing"]
        context["store"] = context["store"].chunks
        context["good"] = None if good is None else (good.policy, good.record)  # what is gone back to
        context["standing"] = None if standing is None else dataclasses.asdict(standing)
    return to_arrays(own)


def assert_same(one: WorkLearner, other: WorkLearner) -> None:
    """Bit for bit."""
    arrays, others = everything(one), everything(other)
    assert sorted(arrays) == sorted(others)
    for name, array in arrays.items():
        assert array.dtype == others[name].dtype
        assert array.tobytes() == others[name].tobytes(), name


def learned(learner: WorkLearner) -> Update:
    """An update as it might be: real ones take seconds to compile."""
    number, state = learner.current, learner.contexts[learner.current].state
    learner.since_update = 0
    policy = jax.tree.map(lambda leaf: leaf * np.float32(1.01), state.policy)
    return Update(number, state, dataclasses.replace(state, policy=policy))


def work(learner: WorkLearner, store: WorkStore, errors: list[float], *, seed: int = 0, update_at: int = -1) -> None:
    """Blocks with these errors; after one of them an update is adopted."""
    for k, error in enumerate(errors):
        record = block_of_work(learner.task, 2, error, seed=seed + k)
        record = record if learner.contexts[learner.current].standing is None else with_memory(record)
        report = learner.take(record)
        store.keep_block(learner, record, report, ran=2)
        if k == update_at and learner.adopt(learned(learner)):
            store.keep_checkpoint(learner)


@pytest.mark.parametrize("make", [learner_of, on_base])
def test_a_learner_comes_back_bit_for_bit_and_goes_on_alike(make, work_task, tmp_path):
    said: list[str] = []
    store, learner = stored(tmp_path / "work", work_task, said), make(work_task)
    work(learner, store, [1.0, 1.1], update_at=1)
    learner._begin(0)  # other conditions
    work(learner, store, [1.0, 1.2, 1.1, 3.0], seed=5, update_at=1)
    store.close()  # as a killed process does; the newest two blocks are in no checkpoint
    other = make(work_task)
    restore_snapshot(other, *take_snapshot(learner))
    assert_same(learner, other)

    again = make(work_task)
    store = stored(tmp_path / "work", work_task, said)
    store.resume(again)
    assert said == [f"goes on with the work in {tmp_path / 'work'}: 6 blocks, 2 kinds of conditions"]
    learner.compare_with_base()  # what every session begins with
    assert_same(learner, again)
    record = block_of_work(work_task, 2, 1.0, seed=9)
    record = record if again.contexts[1].standing is None else with_memory(record)
    assert str(learner.take(record)) == str(again.take(record))
    assert_same(learner, again)
    rows = [(line["block"], line["context"], line["updates"], line["due"]) for line in store.folder.lines.read()]
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row[1] for row in rows] == [0, 0, 1, 1, 1, 1]


def test_an_update_learns_from_what_was_kept_as_from_what_was_not(work_task, tmp_path, monkeypatch):
    learner, again = learner_of(work_task), learner_of(work_task)
    work(learner, stored(tmp_path / "work", work_task, []), [0.1, 0.2, 0.1])
    restore_snapshot(again, *take_snapshot(learner))
    seen: list[Any] = []
    for each in (learner, again):  # the agent is a function of what it is given
        observe = SimpleNamespace(observe=lambda *given: (seen.append(given), (given[0], None))[1])
        monkeypatch.setattr(each, "agent", observe)
        each.begin_update()()
    one, other = map(to_arrays, seen)
    assert sorted(one) == sorted(other)
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_disk_is_used_for_a_bounded_time_of_work(work_task, tmp_path, monkeypatch):
    monkeypatch.setattr("firsthand.training.work.store.CHECKPOINT_BLOCKS", 2)
    store, learner = stored(tmp_path / "work", work_task, []), learner_of(work_task, chunks=6, recent_chunks=2)
    work(learner, store, [0.1] * 11)
    assert sorted(os.listdir(tmp_path / "work" / "checkpoints")) == [f"{k:06d}.safetensors" for k in (6, 8, 10)]
    assert sorted(os.listdir(tmp_path / "work" / "blocks")) == [f"{k:06d}.safetensors" for k in range(7, 12)]
    assert len(store.folder.lines.read()) == 11
    size = (tmp_path / "work" / "checkpoints" / "000010.safetensors").stat().st_size
    assert size < 1.5 * (tmp_path / "work" / "checkpoints" / "000006.safetensors").stat().st_size


def test_what_is_damaged_is_left_out_or_refused_in_one_sentence(work_task, tmp_path):
    store, learner = stored(tmp_path / "work", work_task, []), learner_of(work_task)
    work(learner, store, [0.1, 0.1, 0.2], update_at=0)
    store.keep_checkpoint(learner)
    work(learner, store, [0.1, 0.1], seed=3)
    store.close()
    path = tmp_path / "work"

    def resumed(*damaged: str) -> tuple[WorkLearner, list[str]]:
        copy, said = tmp_path / "copy", []
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy)
        for name in damaged:
            data = bytearray((copy / name).read_bytes())
            data[len(data) // 2] ^= 1
            (copy / name).write_bytes(data)
        again, store = learner_of(work_task), stored(copy, work_task, said)
        try:
            store.resume(again)
        finally:
            store.close()
        return again, said

    assert resumed()[0].block == 5
    again, said = resumed("checkpoints/000003.safetensors")
    assert again.block == 5
    assert "000003.safetensors is damaged" in said[0]
    assert len(again.contexts[0].store.chunks) == 10  # blocks 2 to 5 were taken once more
    again, said = resumed("blocks/000005.safetensors")
    assert (again.block, len(said)) == (5, 2)
    assert said[0].startswith("block 5 in ")
    assert said[0].endswith("It is left out.")
    with pytest.raises(UserError, match=r"no checkpoint in .* can be used .*; give another folder, or resume=False"):
        resumed("checkpoints/000001.safetensors", "checkpoints/000003.safetensors")
    with pytest.raises(UserError, match=r"line \d of .*work\.jsonl is damaged; remove that line"):
        resumed("work.jsonl")
    with pytest.raises(UserError, match=r"work\.json is damaged.*resume=False"):
        resumed("work.json")


def test_a_folder_of_something_else_is_refused_and_never_overwritten(work_task, make_probe_task, tmp_path):
    path, said = tmp_path / "work", []
    store, learner = stored(path, work_task, said), learner_of(work_task)
    with pytest.raises(UserError, match=r"is being written by process \d+"):
        stored(path, work_task, said)
    work(learner, store, [0.1])
    store.folder.base_alone = True
    store.close()
    with pytest.raises(UserError, match=r"work of another run, whose config\.json has the SHA-256 f{12}…, and here"):
        WorkFolder.open(path, info_of(work_task, run="0" * 64))
    with pytest.raises(UserError, match="has blocks of 2 trajectories"):
        WorkFolder.open(path, info_of(work_task, block_trajectories=6))
    options = {"command_limit": 2.0, "length_scale": 1.0, "change_weight": 0.01}
    other = make_probe_task(measured=2, command_memory=2, steps=5, preview=(1,), **options)
    store = stored(path, work_task, said)
    with pytest.raises(UserError, match=r"work\.json is of another robot: .* is .* there and .* here; give another"):
        store.resume(learner_of(other))
    store.close()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(UserError, match=r"is not empty and holds no work: it has thesis\.tex"):
        stored(tmp_path / "mine", work_task, said)
    assert os.listdir(tmp_path / "mine") == ["thesis.tex"]
    with pytest.raises(UserError, match="is a file, and must be a folder"):
        stored(tmp_path / "mine" / "thesis.tex", work_task, said)
    operator = path / "operator.json"
    operator.write_text("{}")
    store = stored(path, work_task, said)
    with pytest.raises(UserError, match=r"operator\.json is damaged: 'base_alone' must be true or false; remove it"):
        store.resume(learner_of(work_task))
    store.close()

    # To begin anew sets the earlier work aside, whatever it is.
    for number in (1, 2):
        folder, aside = WorkFolder.open(path, info_of(work_task, run=f"{number}" * 64), resume=False)
        assert aside == tmp_path / f"work-{number}"
        assert folder.load_checkpoint() is None
        assert not folder.base_alone
        folder.close()
    assert (tmp_path / "work-1" / "blocks" / "000001.safetensors").exists()


def test_a_disk_that_is_full_is_said_once_and_does_not_stop_the_work(work_task, tmp_path, monkeypatch):
    said: list[str] = []
    store, learner = stored(tmp_path / "work", work_task, said), learner_of(work_task)

    def full(path: Path, data: bytes) -> None:
        raise UserError("cannot write: the disk is full.")

    monkeypatch.setattr(work_folder.atomic, "write_bytes", full)
    work(learner, store, [0.1, 0.1], update_at=1)
    assert said == ["cannot write: the disk is full. Work goes on, but what is learned is not stored."]
    assert learner.block == 2


def test_the_operator_asks_through_the_folder(work_task, tmp_path):
    learner, asked = on_base(work_task), list[bool]()
    (tmp_path / "work").mkdir()
    control = WorkControl(tmp_path / "work", "tcp/127.0.0.1:1", learner, asked.append)
    control.begin()
    for kind in ("take_back", "give_back", "pause"):
        files.send(tmp_path / "work", Request(kind, control.session))
    files.send(tmp_path / "work", Request("take_back", "an earlier session"))
    control.look()
    control.mark("conditions", "new conditions (number 1)")
    assert asked == [True, False]
    control.end()
    status = files.read_status(tmp_path / "work")
    assert status is not None
    assert [answer["ok"] for answer in status.answers] == [True, True, False, False]
    assert "cannot be asked to pause" in status.answers[2]["text"]
    assert (status.state, status.work and status.work["on_base"]) == ("stopped", True)
    assert files.read_events(tmp_path / "work")[0].text == "new conditions (number 1)"
    with pytest.raises(UserError, match="take_back takes no value"):
        Request("take_back", control.session, 1)
