"""Frames that were changed, cut, repeated or made up: they are counted, and nothing else happens."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import zenoh
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from firsthand_onboard import messages
from firsthand_onboard.jobs import trajectory_bytes
from firsthand_onboard.link import ClientEnd, RobotEnd
from firsthand_onboard.messages import HEAD, TO_ROBOT, Message, MessageError, Receiver, decode, encode
from firsthand_onboard.network import TO_ROBOT_KEY
from firsthand_onboard.spec import SpecError
from firsthand_onboard.toy import toy_spec

from .processes import begin, free_port, rig, wait_for

ROBOT = "robot-identity"
GOOD = Message(
    "job",
    "run-1",
    "session-1",
    ROBOT,
    7,
    body={"name": "x", "kind": "visit", "authority": 0.5},
    arrays={"goals": np.arange(6, dtype=np.float32).reshape(3, 2), "valid": np.asarray([True, False])},
)


def hello(session: str = "session-1", run: str = "run-1", number: int = 1) -> bytes:
    return encode(Message("hello", run, session, "", number))


def test_there_and_back():
    back = decode(encode(GOOD), TO_ROBOT)
    assert (back.kind, back.run, back.session, back.robot, back.number) == ("job", "run-1", "session-1", ROBOT, 7)
    assert back.body == GOOD.body
    assert set(back.arrays) == set(GOOD.arrays)
    for name, array in GOOD.arrays.items():
        assert back.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(back.arrays[name], array)


def framed(header: bytes, payload: bytes = b"") -> bytes:
    """A frame whose checksum is right, whatever is in it."""
    return HEAD.pack(messages.MAGIC, len(header), len(payload), messages._digest(header, payload)) + header + payload


def header(**changes: object) -> bytes:
    fields = {"version": 2, "kind": "job", "run": "r", "session": "s", "robot": ROBOT, "number": 2, "answers": 0}
    return json.dumps({**fields, "now": 1.5, "body": {}, **changes}).encode()


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "malformed"),
        (b"FHL1", "malformed"),
        (b"x" * 100, "malformed"),
        (encode(GOOD)[:-1], "malformed"),
        (encode(GOOD) + b"x", "malformed"),
        (HEAD.pack(b"FHL1", 1 << 20, 0, bytes(16)), "oversized"),
        (HEAD.pack(b"FHL1", 0, 1 << 30, bytes(16)), "oversized"),
        (bytes(HEAD.size + messages.MAX_HEADER + messages.MAX_PAYLOAD + 1), "oversized"),
        (framed(b"[" * 60_000), "malformed"),
        (framed(b"\xff\xfe"), "malformed"),
        (framed(b"[]"), "malformed"),
        (framed(header(version=1)), "unknown"),
        (framed(header(kind="dance")), "unknown"),
        (framed(header(kind=["job"])), "unknown"),
        (framed(header(kind="trajectory")), "unknown"),  # the robot's own kind, sent to the robot
        (framed(header(number="2")), "malformed"),
        (framed(header(number=True)), "malformed"),
        (framed(header(number=-1)), "malformed"),
        (framed(header(number=2**60)), "malformed"),
        *((framed(header(now=no_time)), "malformed") for no_time in ("1.5", True, 1, 10**400, -1.0, 1e300, None)),
        (framed(header(run="a b")), "malformed"),
        (framed(header(session="")), "malformed"),
        (framed(header(session="x" * 65)), "malformed"),
        (framed(header(robot=None)), "malformed"),
        (framed(header(body=[])), "malformed"),
        (framed(header()[:-1] + b', "extra": NaN}'), "malformed"),
        (framed(header(), b"nonsense"), "malformed"),
        (framed(header(), struct.pack("<Q", 1 << 40) + b"{}"), "malformed"),
        (framed(header(), save({"a": np.zeros(2, np.int64)})), "malformed"),
        (framed(header(), save({f"a{i}": np.zeros(1, np.float32) for i in range(65)})), "malformed"),
    ],
)
def test_what_is_no_message_is_told_apart(data, cause):
    with pytest.raises(MessageError) as caught:
        decode(data, TO_ROBOT)
    assert caught.value.cause == cause


def test_replays_and_strangers():
    receiver = Receiver(TO_ROBOT, ROBOT)
    good = encode(GOOD)
    assert receiver.accept(good) is None  # no hello yet
    assert receiver.accept(hello()) is not None
    assert receiver.accept(good) is not None
    assert receiver.accept(good) is None
    assert receiver.accept(hello()) is None
    assert receiver.accept(encode(Message("stop", "run-2", "session-1", ROBOT, 9))) is None  # another run, same session
    assert receiver.accept(encode(Message("stop", "run-1", "session-1", "other robot"[:5], 9))) is None
    counts = receiver.counts
    assert (counts["accepted"], counts["replayed"], counts["misdirected"]) == (2, 2, 3)


def test_a_session_that_was_pushed_out_cannot_come_back():
    receiver = Receiver(TO_ROBOT, ROBOT)
    assert receiver.accept(hello("old")) is not None
    for i in range(messages.MAX_SESSIONS):
        receiver.accept(hello(f"s{i}"))
    assert receiver.accept(hello("old")) is None
    assert receiver.counts["replayed"] == 1


def mutate(rng: np.random.Generator, data: bytes) -> bytes:
    """One of the ways in which a frame is damaged on its way."""
    kind = rng.integers(5)
    place = int(rng.integers(len(data)))
    if kind == 0:
        return flipped(data, place, int(rng.integers(8)))
    if kind == 1:
        return data[:place]
    if kind == 2:
        return data[:place] + rng.bytes(int(rng.integers(1, 40))) + data[place:]
    if kind == 3:
        return data[:place] + rng.bytes(min(16, len(data) - place)) + data[place + 16 :]
    return rng.bytes(int(rng.integers(0, 200)))


def test_no_mutated_frame_is_ever_accepted():
    rng = np.random.default_rng(0)
    frames = [encode(GOOD), encode(Message("stop", "r", "s", ROBOT, 3)), hello()]
    receiver = Receiver(TO_ROBOT, ROBOT)
    for i in range(3000):
        frame = frames[i % 3]
        changed = mutate(rng, frame)
        assert changed == frame or receiver.accept(changed) is None
    assert receiver.counts["accepted"] == 0


@settings(max_examples=300)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_frames_with_a_right_checksum_and_nonsense_inside(head, payload):
    receiver = Receiver(TO_ROBOT, ROBOT)
    assert receiver.accept(framed(head, payload)) is None


ARRAYS = encode(GOOD)[-HEAD.unpack_from(encode(GOOD))[2] :]
"""A payload as it should be."""
nonsense = st.one_of(
    st.binary(min_size=1, max_size=300),
    st.builds(lambda size, rest: struct.pack("<Q", size) + rest, st.integers(0, 300), st.binary(max_size=300)),
    st.builds(lambda at, bit: flipped(ARRAYS, at % len(ARRAYS), bit), st.integers(0, 10**6), st.integers(0, 7)),
    st.builds(lambda at: ARRAYS[: 1 + at % (len(ARRAYS) - 1)], st.integers(0, 10**6)),
)


def flipped(data: bytes, place: int, bit: int) -> bytes:
    return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


@settings(max_examples=500)
@given(nonsense)
def test_a_right_header_with_nonsense_after_it(payload):
    """Either it is refused as malformed, or what was read is arrays of the kinds that are allowed, none too large."""
    receiver = Receiver(TO_ROBOT, ROBOT)
    receiver.accept(hello("s", "r"))
    message = receiver.accept(framed(header(), payload))
    if message is None:
        assert receiver.counts["malformed"] == 1
        return
    assert all(str(array.dtype) in messages.TYPES for array in message.arrays.values())
    assert sum(array.nbytes for array in message.arrays.values()) <= len(payload)


plain = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9), st.lists, max_leaves=4)


@settings(max_examples=300)
@given(st.sampled_from(["version", "kind", "run", "session", "robot", "number", "answers", "body"]), plain)
def test_a_header_with_nonsense_in_one_field(name, value):
    receiver = Receiver(TO_ROBOT, ROBOT)
    receiver.accept(hello("s", "r"))
    message = receiver.accept(framed(header(**{name: value}), ARRAYS))
    assert message is None or getattr(message, name, value) == value


def test_a_flood_of_nonsense_changes_nothing_on_a_real_link(tmp_path):
    with rig(tmp_path, "--speed", "4", "--lease", "3", simulate=("--speed", "4")) as made:
        client = made.client()
        before = client.ask("status").body
        config = zenoh.Config()
        config.insert_json5("mode", '"client"')
        config.insert_json5("connect/endpoints", json.dumps([made.address]))
        config.insert_json5("scouting/multicast/enabled", "false")
        config.insert_json5("transport/shared_memory/enabled", "false")
        rng = np.random.default_rng(1)
        with zenoh.open(config) as session:
            for _ in range(500):
                session.put(TO_ROBOT_KEY, mutate(rng, encode(GOOD)))
            session.put(TO_ROBOT_KEY, bytes(messages.MAX_PAYLOAD + messages.MAX_HEADER + 200_000))
            wait_for(lambda: client.ask("status").body["messages"]["malformed"] > 0, "the flood to arrive")
        after = client.ask("status").body
        assert {k: after[k] for k in ("state", "fault", "job", "taken")} == {
            k: before[k] for k in ("state", "fault", "job", "taken")
        }
        begin(client, toy_spec(), "afterwards", np.zeros((1, 2), np.float32))
        wait_for(lambda: client.ask("status").body["job"]["ended"] == "done", "a job after the flood")
        client.close()


def test_a_long_message_takes_no_memory_that_a_killed_process_would_leave_behind():
    def shared() -> set[str]:
        return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line}

    before, address = shared(), f"tcp/127.0.0.1:{free_port()}"
    robot, client = RobotEnd(address), ClientEnd(address, run="test")
    client.send("hello", arrays={"weights": np.zeros(100_000)})
    assert wait_for(lambda: list(robot.receive()), "the message")[0].arrays["weights"].shape == (100_000,)
    assert shared() <= before
    client.close()
    robot.close()


def test_what_is_too_long_is_not_even_sent():
    with pytest.raises(MessageError):
        encode(Message("policy", "r", "s", "", 1, arrays={"a": np.zeros(5_000_000)}))
    with pytest.raises(SpecError):
        ClientEnd("tcp/127.0.0.1:1", run="with blanks")


@pytest.mark.parametrize("steps", [1, 5000])
def test_the_size_of_an_answer_is_known_before_the_job_runs(steps):
    spec = toy_spec()
    layout, points = spec.layout, steps + spec.preview[-1]
    arrays = {
        "start": np.zeros(layout.size, np.float32),
        "measured": np.zeros((steps + 1, layout.num_measured), np.float32),
        "commands": np.zeros((steps, layout.num_commands), np.float32),
        "reference": np.zeros((points, spec.num_outputs), np.float32),
        "free": np.zeros((steps, layout.num_commands), bool),
        "valid": np.zeros(steps, bool),
    }
    frame = encode(Message("trajectory", "r", "s", ROBOT, 1, arrays=arrays))
    assert len(frame) <= trajectory_bytes(spec, steps) <= len(frame) + 8192
