"""Logs of a toy robot (two positions, two commands, every 0.05 s) in the three forms, good and bad."""

import builtins
import hashlib
import json
import os
import resource
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.logs import Log, read_log
from firsthand.logs.base import NO_HISTORY, NO_SUCCESSOR, transitions
from firsthand.logs.episodes import DID_NOT_HAPPEN
from firsthand.logs.mcap import schema
from firsthand.robots import EpisodeRecord
from firsthand.robots.description import ROBOT_DESCRIPTION, RobotDescription, spec_difference
from firsthand.runs import RunFolder
from firsthand.training.learning import as_rollout
from firsthand_onboard import ControlSpec
from firsthand_onboard.signals import IMPLAUSIBLE, NOT_FINITE, OUT_OF_RANGE, SPIKE

HEADER = "time,p0,p1,u0,u1"


def rows(count: int, period: float = 0.05) -> list[list[float]]:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.uniform(-1, 1, (count, 2)), rng.uniform(-0.9, 0.9, (count, 2))], axis=1)
    return [[round(k * period, 6), *map(float, values[k])] for k in range(count)]


def write(path: Path, lines: list[list[float]] | list[str], header: str = HEADER) -> Path:
    text = [line if isinstance(line, str) else ",".join(map(str, line)) for line in lines]
    path.write_text("\n".join([header, *text]) + "\n")
    return path


def test_a_sound_log_is_taken_row_by_row(toy_spec: ControlSpec, tmp_path: Path) -> None:
    data = np.asarray(rows(8))
    log = read_log(write(tmp_path / "a.csv", rows(8)), toy_spec)
    (series,) = log.series
    np.testing.assert_array_equal(series.measured, data[:, 1:3].astype(np.float32))
    np.testing.assert_array_equal(series.commands, data[:-1, 3:].astype(np.float32))
    taken, refused = transitions(toy_spec, log)
    # The state is [y_k, y_{k-1}, u_{k-1}, u_{k-2}]: the first two rows have no such history, the last no successor.
    y, u = data[:, 1:3].astype(np.float32), data[:, 3:].astype(np.float32)
    expected = [np.concatenate([y[k], y[k - 1], u[k - 1], u[k - 2]]) for k in range(2, 7)]
    np.testing.assert_array_equal(taken.states, expected)
    np.testing.assert_array_equal(taken.commands, u[2:7])
    np.testing.assert_array_equal(taken.following, y[3:8])
    assert refused == {NO_HISTORY: 2, NO_SUCCESSOR: 1}
    assert log.rows == len(taken.states) + refused.total()


def test_columns_in_any_order_and_others_beside_them(toy_spec: ControlSpec, tmp_path: Path) -> None:
    plain = read_log(write(tmp_path / "a.csv", rows(8)), toy_spec)
    shuffled = [[r[4], "x", r[2], r[1], r[0], r[3]] for r in rows(8)]
    path = write(tmp_path / "b.csv", [",".join(map(str, r)) for r in shuffled], "u1,remark,p1,p0,time,u0")
    log = read_log(path, toy_spec)
    np.testing.assert_array_equal(log.series[0].measured, plain.series[0].measured)
    np.testing.assert_array_equal(log.series[0].commands, plain.series[0].commands)
    assert log.note == "columns not used: remark"
    assert log.sha256 != plain.sha256


def damaged(change: Callable[[list], None]) -> list[str]:
    lines = rows(20)
    change(lines)
    return [line if isinstance(line, str) else ",".join(map(str, line)) for line in lines]


def put(row: int, column: int, value: object) -> Callable[[list], None]:
    def change(lines: list) -> None:
        lines[row][column] = value

    return change


def short(lines: list) -> None:
    lines[10] = "0.5,1.0"


@pytest.mark.parametrize(
    ("change", "reason", "breaks"),
    [
        (put(10, 1, "nan"), NOT_FINITE, True),
        (put(10, 1, "inf"), NOT_FINITE, True),
        (put(10, 4, ""), NOT_FINITE, True),
        (put(10, 2, "abc"), NOT_FINITE, True),
        (put(10, 2, 1e6), IMPLAUSIBLE, True),
        (put(10, 3, 1.5), OUT_OF_RANGE, False),
        (short, "its time is missing or not a number", True),
    ],
    ids=["nan", "inf", "empty", "text", "far", "range", "cells"],
)
def test_a_bad_row_is_refused_and_counted(
    change: Callable[[list], None], reason: str, breaks: bool, toy_spec: ControlSpec, tmp_path: Path
) -> None:
    log = read_log(write(tmp_path / "a.csv", damaged(change)), toy_spec)
    taken, refused = transitions(toy_spec, log)
    assert refused[reason] == 1
    assert len(log.series) == 2
    # Where the measurement is bad, the row before has no successor either.
    assert refused[NO_SUCCESSOR] == (2 if breaks else 1)
    assert refused[NO_HISTORY] == 4
    assert len(taken.states) + refused.total() == log.rows == 20
    assert np.isfinite(np.concatenate(taken, axis=1)).all()


def test_a_gap_in_time_is_never_bridged(toy_spec: ControlSpec, tmp_path: Path) -> None:
    lines = [[r[0] + (1.0 if k >= 10 else 0.0), *r[1:]] for k, r in enumerate(rows(20))]
    log = read_log(write(tmp_path / "a.csv", lines), toy_spec)
    assert [len(s.commands) for s in log.series] == [9, 9]


@pytest.mark.parametrize(
    ("header", "lines", "words"),
    [
        ("time,p0,p_1,u0,u1", rows(5), "no column 'p1' (did you mean 'p_1'?); a log of toy has the columns time, p0"),
        ("time,p0,p1,u0,u0", rows(5), "2 columns 'u0'"),
        (HEADER, [], "0 rows with a time"),
        (HEADER, rows(5)[::-1], "time goes from 0.2 to 0.15 s at row 2"),
        (HEADER, rows(20, period=0.1), "a row every 0.1 s, but toy is controlled every 0.05 s"),
    ],
    ids=["column", "twice", "empty", "unsorted", "slow"],
)
def test_a_log_that_cannot_be_used_gets_one_sentence(
    header: str, lines: list, words: str, toy_spec: ControlSpec, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        read_log(write(tmp_path / "a.csv", lines, header), toy_spec)
    assert words in str(caught.value)
    assert str(tmp_path / "a.csv") in str(caught.value)


def test_not_a_log(toy_spec: ControlSpec, tmp_path: Path) -> None:
    for name, content, words in [
        ("a.csv", b"\xff\xfe\x00binary", "is not UTF-8 text"),
        ("b.csv", b"", "is empty"),
        (
            "c.txt",
            b"time\n",
            r"must be a run folder, a rosbag2, a LeRobot dataset, a \.csv",
        ),
        ("d.mcap", b"time\n", "not an MCAP file"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=words):
            read_log(tmp_path / name, toy_spec)
    with pytest.raises(UserError, match="does not exist"):
        read_log(tmp_path / "nothing.csv", toy_spec)


def test_a_faster_log_is_resampled(toy_spec: ControlSpec, tmp_path: Path) -> None:
    # Every 0.02 s, 2.5 times as often as the robot is controlled. Positions are lines in time, so that interpolation is
    # exact; the command is the number of its row over 100, so that its mean over a period can be worked by hand.
    lines = [[k * 0.02, k * 0.002, 1.0 - k * 0.004, k / 100, -k / 100] for k in range(26)]
    log = read_log(write(tmp_path / "a.csv", lines), toy_spec)
    (series,) = log.series
    grid = 0.05 * np.arange(11)
    np.testing.assert_allclose(series.measured[:, 0], 0.1 * grid, atol=1e-6)
    np.testing.assert_allclose(series.measured[:, 1], 1.0 - 0.2 * grid, atol=1e-6)
    # From 0 to 0.05 s: row 0 and row 1 for 0.02 s each and row 2 for 0.01 s. Then half of row 2, rows 3 and 4.
    np.testing.assert_allclose(series.commands[:4, 0], [0.008, 0.032, 0.058, 0.082], atol=1e-6)
    np.testing.assert_allclose(series.commands[:, 1], -series.commands[:, 0])
    assert "resampled from 0.02 to 0.05 s: 26 rows became 11" in log.note


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Python holds at most `size` bytes more inside the block."""
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


def test_a_long_csv_is_not_held_as_text(toy_spec: ControlSpec, tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv", [f"{0.05 * k:.2f},{'0.' + 200 * '1'},-0.5,0.25,{k % 7 / 10}" for k in range(10_000)]
    )
    read_log(path, toy_spec)  # what is imported on the way
    with at_most(path.stat().st_size):
        log = read_log(path, toy_spec)
    assert log.usable == 9_999
    assert log.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def write_mcap(
    path: Path, spec: ControlSpec, messages: list[dict] | list[bytes], encoding: str = "json", camera: bytes = b"\x00"
) -> Path:
    from mcap.writer import Writer

    with path.open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        form = writer.register_schema(name="step", encoding="jsonschema", data=json.dumps(schema(spec)).encode())
        channel = writer.register_channel(topic="firsthand/step", message_encoding=encoding, schema_id=form)
        other = writer.register_channel(topic="camera", message_encoding="raw", schema_id=form)
        for k, message in enumerate(messages):
            at = 50_000_000 * k
            data = message if isinstance(message, bytes) else json.dumps(message).encode()
            writer.add_message(channel, log_time=at, data=data, publish_time=at)
            writer.add_message(other, log_time=at, data=camera, publish_time=at)
        writer.finish()
    return path


def as_messages(count: int) -> list[dict]:
    return [
        {"time": r[0], "measured": {"p0": r[1], "p1": r[2]}, "commands": {"u0": r[3], "u1": r[4]}} for r in rows(count)
    ]


@pytest.mark.parametrize("timed", [True, False])
def test_mcap_says_the_same_as_csv(timed: bool, toy_spec: ControlSpec, tmp_path: Path) -> None:
    messages = as_messages(8)
    for message in messages if not timed else []:
        del message["time"]
    log = read_log(write_mcap(tmp_path / "a.mcap", toy_spec, messages), toy_spec)
    plain = read_log(write(tmp_path / "a.csv", rows(8)), toy_spec)
    np.testing.assert_array_equal(log.series[0].measured, plain.series[0].measured)
    np.testing.assert_array_equal(log.series[0].commands, plain.series[0].commands)


def test_cameras_in_an_mcap_are_not_held(toy_spec: ControlSpec, tmp_path: Path) -> None:
    camera = np.random.default_rng(0).bytes(2_000_000)
    path = write_mcap(tmp_path / "a.mcap", toy_spec, as_messages(15), camera=camera)
    read_log(path, toy_spec)
    with at_most(path.stat().st_size // 2):
        log = read_log(path, toy_spec)
    assert log.usable == 14
    assert log.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_number_too_large_for_any_float_is_a_bad_row(toy_spec: ControlSpec, tmp_path: Path) -> None:
    messages = as_messages(8)
    messages[3]["measured"]["p1"] = 10**400
    log = read_log(write_mcap(tmp_path / "a.mcap", toy_spec, messages), toy_spec)
    assert log.refused[NOT_FINITE] == 1
    assert [len(series.commands) for series in log.series] == [2, 3]


def test_bad_mcap(toy_spec: ControlSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = as_messages(8)
    del lacking[3]["measured"]["p1"]
    for messages, encoding, words in [
        (lacking, "json", "message 4 on firsthand/step: measured lacks 'p1'"),
        ([{"time": 0.0}], "json", "'measured' is missing"),
        ([b"[" * 200_000], "json", "message 1 on firsthand/step: its JSON is nested too deep to be read"),
        (as_messages(3), "cdr", "its encoding is 'cdr'"),
        ([], "json", "no message on the topic 'firsthand/step'"),
    ]:
        path = write_mcap(tmp_path / "a.mcap", toy_spec, messages, encoding)
        with pytest.raises(UserError) as caught:
            read_log(path, toy_spec)
        assert words in str(caught.value)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match="damaged or not an MCAP file"):
        read_log(path, toy_spec)

    real = builtins.__import__

    def without(name: str, *arguments: object, **options: object) -> object:
        if name.startswith("mcap"):
            raise ImportError(name)
        return real(name, *arguments, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"pip install .* -e '\.\[mcap\]'"):
        read_log(path, toy_spec)


def episode(spec: ControlSpec, seed: int, starts: np.ndarray | None = None) -> EpisodeRecord:
    rng = np.random.default_rng(seed)
    measured = rng.uniform(-1, 1, (2, 6, 2)).astype(np.float32)
    starts = rng.uniform(-1, 1, (2, spec.layout.size)).astype(np.float32) if starts is None else starts
    starts[:, :2] = measured[:, 0]
    return EpisodeRecord(
        starts=starts,
        measured=measured,
        commands=rng.uniform(-0.9, 0.9, (2, 5, 2)).astype(np.float32),
        references=np.zeros((2, 8, 2), np.float32),
        free=np.ones((2, 5, 2), bool),
        valid=np.ones((2, 5), bool),
    )


def store(path: Path, spec: ControlSpec, episodes: list[EpisodeRecord]) -> Path:
    with RunFolder.create(
        path,
        {ROBOT_DESCRIPTION: RobotDescription(spec, "m", 1, (0.0,) * len(spec.layout.position), 1.0).as_dict()},
        provenance={},
    ) as run:
        for number, record in enumerate(episodes, start=1):
            run.save_episode(number, record.arrays(), {})
    return path


def test_a_run_folder_gives_what_the_learner_saw(toy_spec: ControlSpec, tmp_path: Path) -> None:
    record = episode(toy_spec, 0)
    record.valid[1, 3:] = False
    record.measured[0, 3, 1] = np.nan
    log = read_log(store(tmp_path / "run", toy_spec, [record]), toy_spec)
    taken, refused = transitions(toy_spec, log)
    rollout = as_rollout(toy_spec, record)
    valid = np.asarray(rollout.valid)
    # After a hole the registers are rebuilt, which takes two more rows than the learner itself gives up.
    lost = np.zeros_like(valid)
    lost[0, 4:6] = True
    usable = valid & ~lost
    np.testing.assert_array_equal(taken.states, np.asarray(rollout.states[:, :-1])[usable])
    np.testing.assert_array_equal(taken.commands, np.asarray(rollout.commands)[usable])
    assert refused[DID_NOT_HAPPEN] == 2
    assert refused[NOT_FINITE] == 2
    assert len(taken.states) + refused.total() == log.rows == 10


def test_trajectories_that_follow_one_another_are_one_stretch(toy_spec: ControlSpec, tmp_path: Path) -> None:
    first = episode(toy_spec, 0)
    y, u = first.measured[0], first.commands[0]
    first.measured[1, 0] = y[5]
    first.starts[1] = np.concatenate([y[5], y[4], u[4], u[3]])
    other = episode(toy_spec, 1)
    log = read_log(store(tmp_path / "run", toy_spec, [first, other]), toy_spec)
    assert [len(s.commands) for s in log.series] == [10, 5, 5]


def test_another_robots_run_is_refused_with_the_field(toy_spec: ControlSpec, tmp_path: Path) -> None:
    path = store(tmp_path / "run", toy_spec, [episode(toy_spec, 0)])
    slower = replace(toy_spec, period_s=0.1)
    with pytest.raises(UserError, match=r"is not a log of this robot: period_s is 0\.05 there and 0\.1 here"):
        read_log(path, slower)
    assert spec_difference(toy_spec, toy_spec) is None
    # Another memory is no other robot: the registers are rebuilt.
    longer = replace(toy_spec, layout=replace(toy_spec.layout, command_memory=3))
    log: Log = read_log(path, longer)
    taken, refused = transitions(longer, log)
    assert refused == {NO_HISTORY: 6}
    assert taken.states.shape == (4, longer.layout.size)


def test_a_run_with_commands_in_another_unit_is_refused(toy_spec: ControlSpec, tmp_path: Path) -> None:
    record = episode(toy_spec, 0)
    limits = toy_spec.limits
    for factor, taken in ((100.0, False), (0.01, False), (1.5, True)):
        low, high = (tuple(factor * v for v in side) for side in (limits.command_low, limits.command_high))
        old = replace(toy_spec, limits=replace(limits, command_low=low, command_high=high))
        path = store(tmp_path / f"run{factor}", old, [record])
        if taken:
            assert read_log(path, toy_spec).usable == 10
            continue
        with pytest.raises(UserError) as caught:
            read_log(path, toy_spec)
        ranges = f"the command u0 ranges from {-factor:g} to {factor:g} there and from -1 to 1 here"
        assert f"{path} is not a log of this robot: {ranges}, which must be another unit." in str(caught.value)


def test_a_command_out_of_range_hides_no_bad_measurement(toy_spec: ControlSpec, tmp_path: Path) -> None:
    record = episode(toy_spec, 0)
    record.commands[0, 2, 0] = 1.4
    record.measured[0, 3, 1] = np.nan
    log = read_log(store(tmp_path / "run", toy_spec, [record]), toy_spec)
    taken, refused = transitions(toy_spec, log)
    assert refused[NOT_FINITE] == 2, "the step towards the bad sample and the one from it"
    assert np.isfinite(np.concatenate(taken, axis=1)).all()


def test_a_spike_in_a_run_is_refused_as_the_learner_does(toy_spec: ControlSpec, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    record = EpisodeRecord(
        starts=np.zeros((1, toy_spec.layout.size), np.float32),
        measured=rng.uniform(-0.1, 0.1, (1, 101, 2)).astype(np.float32),
        commands=rng.uniform(-0.9, 0.9, (1, 100, 2)).astype(np.float32),
        references=np.zeros((1, 103, 2), np.float32),
        free=np.ones((1, 100, 2), bool),
        valid=np.ones((1, 100), bool),
    )
    record.measured[0, 50, 1] = 70.0
    taken, refused = transitions(toy_spec, read_log(store(tmp_path / "run", toy_spec, [record]), toy_spec))
    assert refused == {SPIKE: 2, NO_HISTORY: 2}
    assert np.asarray(as_rollout(toy_spec, record).valid).sum() == len(taken.states) + 1
    assert np.abs(taken.states).max() < 1
    assert np.abs(taken.following).max() < 1


def bomb(compression: str, promised: int, real: int, chunks: int = 1) -> bytes:
    """An MCAP file of a few hundred kB with a chunk that unpacks to `real` bytes and promises `promised`."""
    import lz4.frame
    import zstandard
    from mcap.data_stream import RecordBuilder
    from mcap.records import Chunk, DataEnd, Footer, Header

    zeros = bytes(9 << 17)  # whole records, of an unknown kind
    if compression == "zstd":
        packer = zstandard.ZstdCompressor(level=3).compressobj()
        data = b"".join(packer.compress(zeros) for _ in range(real >> 20)) + packer.flush()
    else:
        lz4s = lz4.frame.LZ4FrameCompressor()
        data = lz4s.begin() + b"".join(lz4s.compress(zeros) for _ in range(real >> 20)) + lz4s.flush()
    built = RecordBuilder()
    Header("", "").write(built)
    for _ in range(chunks):
        Chunk(compression, data, 1, 0, 0, promised).write(built)
    DataEnd(0).write(built)
    Footer(0, 0, 0).write(built)
    magic = b"\x89MCAP0\r\n"
    return magic + built.end() + magic


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("promised", [1000, 60 << 20, 300 << 20, (1 << 64) - 1])
def test_a_small_mcap_that_unpacks_to_much_takes_no_memory(
    compression: str, promised: int, toy_spec: ControlSpec, tmp_path: Path
) -> None:
    path = tmp_path / "bomb.mcap"
    path.write_bytes(bomb(compression, promised, 300 << 20))
    assert path.stat().st_size < 2 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"unpacks to") as caught:
        read_log(path, toy_spec)
    assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250 << 10  # kB


def test_many_chunks_together_are_bounded_too(
    toy_spec: ControlSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firsthand.logs.mcap.MAX_UNPACKED", 1 << 20)
    (tmp_path / "many.mcap").write_bytes(bomb("zstd", 9 << 17, 1 << 20, chunks=4))
    with pytest.raises(UserError, match=r"that is not a log of a robot"):
        read_log(tmp_path / "many.mcap", toy_spec)


@pytest.mark.parametrize("name", ["a.csv", "a.mcap"])
def test_a_pipe_is_no_log(name: str, toy_spec: ControlSpec, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match="must be an ordinary file"):
        read_log(tmp_path / name, toy_spec)


def test_units_in_a_log_are_those_of_the_task(toy_spec: ControlSpec, tmp_path: Path) -> None:
    layout = replace(toy_spec.layout, measured_units=("m", "rad"), command_units=("V", "V"))
    spec = replace(toy_spec, layout=layout)
    lines = rows(20)
    good = write(tmp_path / "good.csv", lines, "time [s],p0 [m],p1 [rad],u0,u1 [V]")
    assert read_log(good, spec).usable > 0
    bad = write(tmp_path / "bad.csv", lines, "time [s],p0 [mm],p1,u0,u1")
    with pytest.raises(UserError, match=r"bad\.csv has 'p0' in mm, but the task has it in m; convert the column"):
        read_log(bad, spec)
    other = replace(toy_spec, layout=replace(layout, command_units=("V", "mV")))
    folder = store(tmp_path / "run", other, [episode(other, 0)])
    with pytest.raises(UserError, match="run has 'u1' in mV, but the task has it in V"):
        read_log(folder, spec)
    assert read_log(folder, toy_spec).usable  # nothing is declared here
