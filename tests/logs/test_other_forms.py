"""ROS 2 bags (MCAP and SQLite) and LeRobot datasets, read as logs with the same refusals as any other log."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.export.robot_log import DEFINITIONS, JOINT_STATE, NUMBERS
from firsthand.logs import Log, read_log
from firsthand_onboard import ControlSpec
from firsthand_onboard.signals import NOT_FINITE, OUT_OF_RANGE

MAP = """
[measured]
p0 = "/joint_states position[elbow]"
p1 = { topic = "/joint_states", field = "position[wrist]", factor = 0.001 }

[commands]
u0 = "/valves data[0]"
u1 = "/valves data[1]"
"""


def motion(count: int, period: float = 0.05) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return period * np.arange(count), rng.uniform(-1, 1, (count, 2)), rng.uniform(-0.9, 0.9, (count, 2))


def joint_state(positions: Any, stamp: float) -> dict[str, Any]:
    nanoseconds = round(stamp * 1e9)
    return {
        "header": {"stamp": {"sec": nanoseconds // 10**9, "nanosec": nanoseconds % 10**9}, "frame_id": ""},
        "name": ["wrist", "elbow"],
        "position": [1000 * float(positions[1]), float(positions[0])],
        "velocity": [],
        "effort": [],
    }


def numbers(values: Any) -> dict[str, Any]:
    return {"layout": {"dim": [], "data_offset": 0}, "data": [float(value) for value in values]}


def write_bag(path: Path, times: np.ndarray, measured: np.ndarray, commands: np.ndarray, late: float = 0.0) -> Path:
    """A bag as `ros2 bag record` makes it; commands are taken `late` seconds after the joint states."""
    from mcap_ros2.writer import Writer

    with path.open("wb") as stream, Writer(stream) as writer:
        kinds = {name: writer.register_msgdef(name, text) for name, text in DEFINITIONS.items()}
        for time, y, u in zip(times, measured, commands, strict=True):
            at = round((1e9 + time) * 1e9)
            writer.write_message("/joint_states", kinds[JOINT_STATE], joint_state(y, time), log_time=at)
            later = at + round(late * 1e9)
            writer.write_message("/valves", kinds[NUMBERS], numbers(u), log_time=later)
    return path


def map_file(folder: Path, text: str = MAP) -> Path:
    path = folder / "topics.toml"
    path.write_text(text)
    return path


def check(log: Log, measured: np.ndarray, commands: np.ndarray) -> None:
    (series,) = log.series
    np.testing.assert_allclose(series.measured, measured, atol=1e-6)
    np.testing.assert_allclose(series.commands, commands[:-1], atol=1e-6)


def test_a_bag_is_read_through_a_map(toy_spec: ControlSpec, tmp_path: Path) -> None:
    times, y, u = motion(12)
    log = read_log(write_bag(tmp_path / "a.mcap", times, y, u), toy_spec, topics=map_file(tmp_path))
    check(log, y, u)
    assert log.note == ""
    # As a folder, the way ROS 2 leaves it, and by the time in the messages.
    folder = tmp_path / "bag"
    folder.mkdir()
    (folder / "metadata.yaml").write_text("rosbag2_bagfile_information: {}\n")
    write_bag(folder / "bag_0.mcap", times[:6], y[:6], u[:6])
    write_bag(folder / "bag_1.mcap", times[6:], y[6:], u[6:])
    check(read_log(folder, toy_spec, topics=map_file(tmp_path)), y, u)
    stamped = map_file(tmp_path, 'time = "stamp"\n' + MAP)
    with pytest.raises(UserError, match=r"message 1 on /valves has no header with a time"):
        read_log(tmp_path / "a.mcap", toy_spec, topics=stamped)


def test_a_command_counts_from_when_it_was_sent(toy_spec: ControlSpec, tmp_path: Path) -> None:
    times, y, u = motion(12)
    log = read_log(write_bag(tmp_path / "a.mcap", times, y, u, late=0.01), toy_spec, topics=map_file(tmp_path))
    (series,) = log.series
    # A fifth of each period still has the command before; nothing is known before the first one.
    np.testing.assert_allclose(series.measured, y[1:], atol=1e-6)
    np.testing.assert_allclose(series.commands, 0.2 * u[:-2] + 0.8 * u[1:-1], atol=1e-6)
    assert log.refused[NOT_FINITE] == 1
    assert "rows are the messages on /joint_states; brought to their times: /valves" in log.note


def test_an_old_command_is_no_command(toy_spec: ControlSpec, tmp_path: Path) -> None:
    from mcap_ros2.writer import Writer

    times, y, u = motion(40)
    path = tmp_path / "a.mcap"
    with path.open("wb") as stream, Writer(stream) as writer:
        kinds = {name: writer.register_msgdef(name, text) for name, text in DEFINITIONS.items()}
        writer.write_message("/valves", kinds[NUMBERS], numbers(u[0]), log_time=0)
        for time, positions in zip(times, y, strict=True):
            at = round(time * 1e9)
            writer.write_message("/joint_states", kinds[JOINT_STATE], joint_state(positions, time), log_time=at)
    log = read_log(path, toy_spec, topics=map_file(tmp_path, "hold_s = 1.0\n" + MAP))
    assert [len(series.commands) for series in log.series] == [20]
    assert log.refused[NOT_FINITE] == 40 - 21


def test_the_same_refusals_as_any_log(toy_spec: ControlSpec, tmp_path: Path) -> None:
    topics = map_file(tmp_path)
    times, y, u = motion(20)
    u[5, 0] = 1.5
    log = read_log(write_bag(tmp_path / "a.mcap", times, y, u), toy_spec, topics=topics)
    assert log.refused[OUT_OF_RANGE] == 1
    with pytest.raises(UserError, match=r"a row every 0\.1 s, but toy is controlled every 0\.05 s"):
        read_log(write_bag(tmp_path / "b.mcap", 2 * times, y, u), toy_spec, topics=topics)
    turning = np.stack([np.angle(np.exp(1j * 0.3 * np.arange(200))), np.zeros(200)], axis=1)
    path = write_bag(tmp_path / "c.mcap", 0.05 * np.arange(200), turning, np.zeros((200, 2)))
    with pytest.raises(UserError, match="unwrap"):
        read_log(path, toy_spec, topics=topics)
    jitter = times + np.where(np.arange(20) % 7 == 3, 0.03, 0.0)
    assert len(read_log(write_bag(tmp_path / "d.mcap", jitter, y, 0 * u), toy_spec, topics=topics).series) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("/valves data[0]", "/valve data[0]"), "no message on the topic '/valve' (did you mean '/valves'?)"),
        (("/valves data[0]", "/valve data[0]"), "it has /joint_states, /valves"),
        (("position[elbow]", "position[elbwo]"), "names no 'elbwo' (did you mean 'elbow'?); it names wrist, elbow"),
        (("position[elbow]", "positions[elbow]"), "there is no 'positions' (did you mean 'position'?)"),
        (("position[elbow]", "name[0]"), "is str, but must be a number"),
        (("position[elbow]", "header[0]"), "there is no list to take entry 0 from"),
        (("/valves data[0]", "/valves data[7]"), "'data[7]' of /valves is a number in none of its 5 messages"),
        (("position[elbow]", "posi tion"), "is not a field of a message"),
        (('u0 = "/valves data[0]"', ""), "[commands] lacks 'u0'"),
        (("u0 =", "u9 ="), "[commands] has 'u9'"),
        (("[commands]", "[command]"), "has 'command' (did you mean 'commands'?)"),
        (('"/valves data[0]"', "3"), 'must be a text "TOPIC FIELD"'),
        (("0.001", "0"), "factor is 0, but must be a number other than 0"),
        (("[measured]", "hold_s = -1\n[measured]"), "hold_s is -1, but must be a positive number"),
        (("[measured]", "time = 3\n[measured]"), "time is 3, but must be 'log' or 'stamp'"),
        (("[measured]", "[measured"), "is not a TOML file"),
    ],
)
def test_a_map_that_does_not_fit_gets_one_sentence(
    change: tuple[str, str], words: str, toy_spec: ControlSpec, tmp_path: Path
) -> None:
    bag = write_bag(tmp_path / "a.mcap", *motion(5))
    with pytest.raises(UserError) as caught:
        read_log(bag, toy_spec, topics=map_file(tmp_path, MAP.replace(*change)))
    assert words in str(caught.value)


def test_a_bag_without_a_map_lists_its_topics(toy_spec: ControlSpec, tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "a.mcap", *motion(5))
    with pytest.raises(UserError, match=r"it has /joint_states, /valves: say in a topic map .*--topics FILE\.toml"):
        read_log(bag, toy_spec)


@pytest.fixture(scope="module")
def sqlite_bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bag of ROS 2 Humble: SQLite, without definitions of its messages."""
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    types: Any = store.types
    path = tmp_path_factory.mktemp("bags") / "bag"
    times, y, u = motion(12)
    with Writer(path, version=8, storage_plugin=StoragePlugin.SQLITE3) as writer:
        states = writer.add_connection("/joint_states", JOINT_STATE, typestore=store)
        valves = writer.add_connection("/valves", NUMBERS, typestore=store)
        header, time_type = types["std_msgs/msg/Header"], types["builtin_interfaces/msg/Time"]
        for time, positions, command in zip(times, y, u, strict=True):
            at = round((1e9 + time) * 1e9)
            values = np.asarray([1000 * positions[1], positions[0]])
            nothing = np.zeros(0)
            message = types[JOINT_STATE](header(time_type(0, 0), ""), ["wrist", "elbow"], values, nothing, nothing)
            writer.write(states, at, store.serialize_cdr(message, JOINT_STATE))
            content = types[NUMBERS](types["std_msgs/msg/MultiArrayLayout"]([], 0), np.asarray(command))
            writer.write(valves, at, store.serialize_cdr(content, NUMBERS))
    return path


def test_an_sqlite_bag_without_definitions(sqlite_bag: Path, toy_spec: ControlSpec, tmp_path: Path) -> None:
    _, y, u = motion(12)
    check(read_log(sqlite_bag, toy_spec, topics=map_file(tmp_path)), y, u)
    (file,) = sqlite_bag.glob("*.db3")
    check(read_log(file, toy_spec, topics=map_file(tmp_path)), y, u)
    with pytest.raises(UserError, match=r"needs a topic map .* it has /joint_states, /valves"):
        read_log(sqlite_bag, toy_spec)
    other = map_file(tmp_path, MAP.replace("/valves", "/wheels"))
    with pytest.raises(UserError, match=r"no message on the topic '/wheels'.*; it has /joint_states, /valves"):
        read_log(sqlite_bag, toy_spec, topics=other)
    damaged = tmp_path / "damaged.db3"
    damaged.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(UserError, match="is damaged or not a rosbag2"):
        read_log(damaged, toy_spec, topics=map_file(tmp_path))


def test_a_bag_that_would_compute_or_unpack_without_end_is_refused(
    sqlite_bag: Path, toy_spec: ControlSpec, tmp_path: Path
) -> None:
    import sqlite3

    import zstandard

    (file,) = sqlite_bag.glob("*.db3")
    endless = tmp_path / "endless.db3"
    endless.write_bytes(file.read_bytes())
    with sqlite3.connect(endless) as database:
        database.execute("ALTER TABLE messages RENAME TO others")
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
        database.execute(f"CREATE VIEW messages AS {numbers} SELECT i AS id, 1 AS topic_id, i AS timestamp FROM n")
    with pytest.raises(UserError, match="its database has a view 'messages', not only tables"):
        read_log(endless, toy_spec, topics=map_file(tmp_path))
    bag = tmp_path / "bag"
    bag.mkdir()
    (bag / "metadata.yaml").write_text((sqlite_bag / "metadata.yaml").read_text())
    (bag / "bag.db3.zstd").write_bytes(zstandard.compress(bytes(80 << 20)))
    with pytest.raises(UserError, match="unpacks to more than 64 MB, which no log does"):
        read_log(bag, toy_spec, topics=map_file(tmp_path))


# LeRobot


def write_dataset(
    path: Path,
    episodes: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
    *,
    version: str = "v2.1",
    fps: float = 20,
    names: Any = ("p0", "p1"),
) -> Path:
    """A dataset as lerobot writes it: a file per episode up to v2.1, one for many from v3.0 on."""
    import pyarrow
    import pyarrow.parquet

    tables = []
    for number, (times, y, u) in enumerate(episodes):
        lists = {"observation.state": y, "action": u}
        columns: dict[str, Any] = {
            name: pyarrow.array([row.astype(np.float32) for row in rows], pyarrow.list_(pyarrow.float32()))
            for name, rows in lists.items()
        }
        columns["timestamp"] = pyarrow.array(times, pyarrow.float32())
        columns["episode_index"] = pyarrow.array([number] * len(times), pyarrow.int64())
        tables.append(pyarrow.table(columns))
    data = path / "data" / "chunk-000"
    data.mkdir(parents=True)
    if version == "v3.0":
        pyarrow.parquet.write_table(pyarrow.concat_tables(tables), data / "file-000.parquet")
    else:
        for number, table in enumerate(tables):
            pyarrow.parquet.write_table(table, data / f"episode_{number:06d}.parquet")
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": names},
        "action": {"dtype": "float32", "shape": [2], "names": {"motors": ["u0", "u1"]}},
        "observation.images.front": {"dtype": "video", "shape": [4, 4, 3], "names": ["height", "width", "channel"]},
    }
    (path / "meta").mkdir()
    (path / "meta" / "info.json").write_text(
        json.dumps({"codebase_version": version, "fps": fps, "features": features})
    )
    return path


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_a_lerobot_dataset_is_a_log(version: str, toy_spec: ControlSpec, tmp_path: Path) -> None:
    times, y, u = motion(24)
    episodes = [(times[:10], y[:10], u[:10]), (times[:14], y[10:], u[10:])]
    log = read_log(write_dataset(tmp_path / "set", episodes, version=version), toy_spec)
    assert [len(series.commands) for series in log.series] == [9, 13]
    np.testing.assert_allclose(log.series[1].measured, y[10:], atol=1e-6)
    np.testing.assert_allclose(log.series[1].commands, u[10:-1], atol=1e-6)


def test_a_dataset_with_names_of_its_own(toy_spec: ControlSpec, tmp_path: Path) -> None:
    times, y, u = motion(10)
    path = write_dataset(tmp_path / "set", [(times, y, u)], names=["wrist.pos", "elbow.pos"])
    with pytest.raises(UserError, match=r"has no 'p0'; it has wrist\.pos, elbow\.pos: say in a topic"):
        read_log(path, toy_spec)
    text = """
    [measured]
    p0 = "observation.state elbow.pos"
    p1 = "observation.state 0"
    [commands]
    u0 = "action u0"
    u1 = "action u1"
    """
    check(read_log(path, toy_spec, topics=map_file(tmp_path, text)), y[:, ::-1], u)
    for old, new, words in [
        (
            "observation.state elbow.pos",
            "observation.stat elbow.pos",
            "no feature 'observation.stat' (did you mean",
        ),
        ("elbow.pos", "ellbow.pos", "has no 'ellbow.pos' (did you mean 'elbow.pos'?)"),
        ("observation.state 0", "observation.state 2", "has no '2'"),
        ("observation.state 0", "observation.images.front 0", "has the shape [4, 4, 3]"),
    ]:
        with pytest.raises(UserError) as caught:
            read_log(path, toy_spec, topics=map_file(tmp_path, text.replace(old, new)))
        assert words in str(caught.value)


def test_a_dataset_with_another_rate(toy_spec: ControlSpec, tmp_path: Path) -> None:
    times, y, u = motion(30)
    slow = write_dataset(tmp_path / "slow", [(2 * times, y, u)], fps=10)
    with pytest.raises(UserError, match=r"a row every 0\.1 s, but toy is controlled every 0\.05 s"):
        read_log(slow, toy_spec)
    fast = write_dataset(tmp_path / "fast", [(times / 2, y, u)], fps=40)
    assert "resampled from 0.025 to 0.05 s: 30 rows became 15" in read_log(fast, toy_spec).note
    wrong = write_dataset(tmp_path / "wrong", [(times, y, u)], fps=50)
    with pytest.raises(UserError, match=r"fps is 50 in meta/info\.json, but episode 0 has a frame every 0\.05 s"):
        read_log(wrong, toy_spec)


def test_a_damaged_dataset_gets_one_sentence(toy_spec: ControlSpec, tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "set", [motion(10)])
    with pytest.raises(UserError, match=r"has no 'q'; it has p0, p1"):
        read_log(path, replace(toy_spec, layout=replace(toy_spec.layout, measured=("q", "p1"))))
    (file,) = path.glob("data/*/*.parquet")
    content = file.read_bytes()
    file.write_bytes(content[:-20])
    with pytest.raises(UserError, match="is damaged or not a parquet file"):
        read_log(path, toy_spec)
    import pyarrow
    import pyarrow.parquet

    table = {"episode_index": [0], "timestamp": [0.0], "action": [[0.1, 0.2]]}
    bomb = pyarrow.array([np.zeros(1_000_000, np.float32)])
    pyarrow.parquet.write_table(pyarrow.table({**table, "observation.state": bomb}), file, compression="zstd")
    assert file.stat().st_size < 10_000
    with pytest.raises(UserError, match=r"has 1000000 values .* but must have 2 in each of its 1 rows"):
        read_log(path, toy_spec)
    info = path / "meta" / "info.json"
    for text, words in [
        (
            '{"codebase_version": "v3.0", "fps": ' + "9" * 400 + "}",
            "fps is 99999999999999999999, but must be a positive",
        ),
        ("{", "is not JSON"),
        ('{"codebase_version": "v9"}', "codebase_version is 'v9', but must be one of v2.0, v2.1, v3.0"),
        ('{"codebase_version": "v3.0", "fps": 0}', "fps is 0, but must be a positive number"),
        ('{"codebase_version": "v3.0", "fps": 20}', "features is not an object"),
    ]:
        info.write_text(text)
        with pytest.raises(UserError) as caught:
            read_log(path, toy_spec)
        assert words in str(caught.value)
