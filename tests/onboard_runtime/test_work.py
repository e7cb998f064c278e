"""A stream of work on a machine in processes of its own: it goes on, it stops, another policy takes over."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from firsthand_onboard.base_control import BaseControl, NumpyBase, PIBase
from firsthand_onboard.gate_limits import GateLimits
from firsthand_onboard.jobs import policy_digest
from firsthand_onboard.kinematics import tracked_output
from firsthand_onboard.loop import HAND_OVER_S, Executor
from firsthand_onboard.messages import Refusal
from firsthand_onboard.numpy_observer import NumpyObserver
from firsthand_onboard.observer import ObserverParameters, ObserverSettings, register_gain, register_taps
from firsthand_onboard.policy import NumpyPolicy
from firsthand_onboard.streams import WAIT_CHUNKS, Stream
from firsthand_onboard.timing import LockStep
from firsthand_onboard.toy import Toy
from firsthand_onboard.work import WorkClient, WorkRefused

from .processes import SPEC, Rig, random_policy, wait_for

STEPS, BEYOND = SPEC.reference.steps, SPEC.preview[-1]
HOME = np.asarray([-0.5, 1.0, 0.0, 0.0])


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("rig"), "--speed", "10", "--lease", "5", simulate=("--speed", "10"))
    yield made
    made.end()


def circle(start: np.ndarray, points: int) -> np.ndarray:
    angle = np.linspace(0, 2 * np.pi, points, endpoint=False)
    return start + 0.1 * np.stack([np.cos(angle) - 1, np.sin(angle)], axis=1)


def collect(work: WorkClient, count: int) -> list:
    chunks: list = []
    wait_for(lambda: (chunks.extend(work.done()), len(chunks) >= count)[1], f"{count} chunks")
    return chunks


def test_work_goes_on_without_a_pause_and_stops_by_itself(machine):
    with WorkClient(machine.address, random_policy(SPEC, gain=0.1)) as work:
        with pytest.raises(WorkRefused, match="begins 5 away"):
            work.send(circle(work.start() + 5.0, 10))
        start = work.start()
        work.send(circle(start, 2 * STEPS))
        with pytest.raises(WorkRefused, match="jumps at point 0"):
            work.send(np.full((3, 2), 7.0))
        work.send(circle(start, STEPS))
        chunks = collect(work, 3)
        for before, after in itertools.pairwise(chunks):  # each begins with what the one before ended with
            np.testing.assert_array_equal(before.arrays["measured"][-1], after.arrays["measured"][0])
            assert np.asarray(after.arrays["valid"]).all()
        np.testing.assert_allclose(chunks[0].arrays["reference"], circle(start, 2 * STEPS)[: STEPS + BEYOND], atol=1e-6)
        assert work.running
        assert work.wait() == "the stream of work stopped"
        assert not work.running
        wait_for(lambda: not machine.moving(), "neutral")
        held = [*chunks, *work.done()][-1]
        np.testing.assert_array_equal(held.arrays["reference"], held.arrays["reference"][:1].repeat(STEPS + BEYOND, 0))
        work.send(circle(work.start(), STEPS))  # a new stream
        assert collect(work, 1)[0].index == 0
        work.wait()


def test_a_policy_is_handed_over_in_motion(machine):
    with WorkClient(machine.address, random_policy(SPEC, gain=0.1)) as work:
        work.send(circle(work.start(), 4 * STEPS))
        before = collect(work, 1)
        work.use(random_policy(SPEC, seed=1, gain=0.1))
        later = collect(work, 2)
        assert all(np.asarray(chunk.arrays["valid"]).all() for chunk in later)
        assert before[0].policy == policy_digest(random_policy(SPEC, gain=0.1))
        assert later[-1].policy == policy_digest(random_policy(SPEC, seed=1, gain=0.1))
        assert work.running
        work.wait()


def test_what_was_done_is_not_lost_where_a_new_stream_begins(machine):
    with WorkClient(machine.address, random_policy(SPEC, gain=0.1)) as work:
        work.send(circle(work.start(), STEPS))
        work.wait()
        work.send(circle(work.start(), STEPS))
        assert [chunk.index for chunk in collect(work, WAIT_CHUNKS + 2)][: WAIT_CHUNKS + 2] == [
            *range(WAIT_CHUNKS + 1),
            0,
        ]
        work.wait()


def test_work_that_was_cut_short_is_not_skipped_in_silence(machine):
    with WorkClient(machine.address, random_policy(SPEC, gain=0.1)) as work:
        start = work.start()
        work.send(circle(start, 4 * STEPS))
        collect(work, 1)
        work.client.send("stop")
        work.use(random_policy(SPEC, seed=1, gain=0.1))  # nothing to hand it over to: the next stream begins with it
        wait_for(lambda: not work.running, "the end")
        with pytest.raises(WorkRefused, match=r"ended before its work was done \(stopped"):
            work.send(circle(start, STEPS))
        assert not np.asarray(list(work.done())[-1].arrays["valid"]).all()
        work.send(circle(work.start(), STEPS))
        assert collect(work, 1)[0].policy == policy_digest(random_policy(SPEC, seed=1, gain=0.1))
        work.wait()


def losing(work: WorkClient, lost: set[int], times: int) -> None:
    """Let chunks of a stream get lost on the way, each so many times."""
    take, left = work._take_arrived, dict.fromkeys(lost, times)

    def take_arrived() -> None:
        while work.client.next(0.0) is not None:
            pass
        for message in list(work.client.others):
            index = int(message.body["index"])
            if left.get(index, 0) > 0:
                left[index] -= 1
                work.client.others.remove(message)
        take()

    work._take_arrived = take_arrived


def test_a_chunk_that_is_lost_on_the_way_is_asked_for_again(machine):
    with WorkClient(machine.address, random_policy(SPEC, gain=0.1)) as work:
        losing(work, {1, WAIT_CHUNKS + 2}, 2)  # one in the middle, and the last one
        work.send(circle(work.start(), 3 * STEPS))
        assert work.wait() == "the stream of work stopped"
        chunks = list(work.done())
        assert [chunk.index for chunk in chunks] == list(range(WAIT_CHUNKS + 3))
        assert [chunk.gap for chunk in chunks] == [0] * len(chunks)
        for before, after in itertools.pairwise(chunks):
            np.testing.assert_array_equal(before.arrays["measured"][-1], after.arrays["measured"][0])


def test_a_chunk_that_never_arrives_is_a_gap_and_does_not_hold_up_the_others(machine):
    with WorkClient(machine.address, random_policy(SPEC, gain=0.1)) as work:
        losing(work, {0, 1}, 1000)
        work.send(circle(work.start(), 3 * STEPS))
        work.wait()
        chunks = list(work.done())
        assert [chunk.index for chunk in chunks] == list(range(2, WAIT_CHUNKS + 3))
        assert [chunk.gap for chunk in chunks] == [2] + [0] * WAIT_CHUNKS


@pytest.mark.parametrize("points", [[[0.0, 1.0], [2.0]], "here", None])
def test_points_that_are_no_numbers_are_refused_in_a_sentence(machine, points):
    with WorkClient(machine.address, random_policy(SPEC, gain=0.1)) as work, pytest.raises(WorkRefused, match="finite"):
        work.send(points)


def executor() -> Executor:
    toy = Toy()

    class Machine:
        lock_step = True
        directions, stopping = Toy.directions, Toy.stopping

        def read(self):
            return toy.measure()

        def write(self, command):
            toy.step(command)

        def neutral(self):
            pass

    machine = Machine()
    limits = GateLimits.of(SPEC, directions=machine.directions, stopping=machine.stopping)
    return Executor(SPEC, machine, limits, LockStep(SPEC.period_s))


def test_commands_do_not_jump_where_policies_change():
    weights = [random_policy(SPEC, seed, 0.3) for seed in (0, 3)]
    layers = [[(each[f"policy.{i}.weight"], each[f"policy.{i}.bias"]) for i in range(3)] for each in weights]
    reference = np.repeat(np.asarray(tracked_output(SPEC, HOME))[None], STEPS + BEYOND, axis=0)
    largest = {}
    for hand_over in (False, True):
        run, (first, second) = executor(), (NumpyPolicy(SPEC, each) for each in layers)
        before = run.follow(first, reference, hand_over=hand_over)
        after = run.follow(second, reference, hand_over=hand_over)
        commands = np.concatenate([before.commands[-1:], after.commands])
        largest[hand_over] = np.abs(np.diff(commands, axis=0)).max()
        ended = second(run.state, reference[np.asarray((0, *SPEC.preview))])
        np.testing.assert_allclose(after.commands[-1], ended, atol=0.05)
    assert largest[True] < 0.3 * largest[False]
    assert round(HAND_OVER_S / SPEC.period_s) < STEPS


def drifting_observer(bias: float) -> NumpyObserver:
    """An observer that believes its own prediction, which drifts, more than what is measured."""
    layout = SPEC.layout
    size, joints = layout.size + layout.num_commands, len(layout.velocity)
    layers = ((np.zeros((joints, size), np.float32), np.full(joints, bias, np.float32)),)
    gain = 0.1 * np.asarray(register_gain(SPEC), np.float32)
    change = np.asarray([SPEC.scales.change_scale[i] for i in layout.velocity], np.float32)
    scale = np.full(layout.num_measured, 1e3, np.float32)
    parameters = ObserverParameters(layers, change, gain, np.asarray(register_taps(SPEC), np.float32), scale)
    return NumpyObserver(SPEC, parameters, ObserverSettings.of(SPEC))


def test_an_estimate_goes_on_where_policies_change():
    """A policy brings an observer of its own, which goes on from the estimate that the one before it saw."""
    weights = random_policy(SPEC, 0, 0.3)
    layers = [(weights[f"policy.{i}.weight"], weights[f"policy.{i}.bias"]) for i in range(3)]
    reference = np.repeat(np.asarray(tracked_output(SPEC, HOME))[None], STEPS + BEYOND, axis=0)
    jump = {}
    for hand_over in (False, True):
        run, observers = executor(), [drifting_observer(0.3), drifting_observer(0.3)]
        first, second = (NumpyPolicy(SPEC, layers) for _ in range(2))
        run.follow(first, reference, observer=observers[0], hand_over=hand_over)
        ended = observers[0].state.copy()
        assert np.abs(ended - run.state).max() > 0.05  # the estimate is not what is measured
        after = run.follow(second, reference, observer=observers[1], hand_over=hand_over)
        jump[hand_over] = np.abs(after.start - ended).max()
        expected = first(ended, reference[np.asarray((0, *SPEC.preview))])
        if hand_over:  # the weights are the same: nothing shows that anything was handed over
            np.testing.assert_allclose(after.commands[0], expected, atol=1e-6)
    assert jump[True] == 0.0
    assert jump[False] > 0.05


def pi_control(authority: float, gain: float = 0.5) -> BaseControl:
    ones, speeds = np.ones(2), np.tile(np.asarray([[0.0, 1.0], [0.0, 1.0]]), (2, 1, 1))
    base = PIBase(gain * ones, 0.5 * ones, np.zeros(2), ones, speeds, speeds)
    return BaseControl(base, authority, 1e9)


def test_what_a_base_has_learned_of_the_robot_goes_on_where_policies_change():
    weights = random_policy(SPEC, 0, 0.0)
    layers = [(weights[f"policy.{i}.weight"], weights[f"policy.{i}.bias"]) for i in range(3)]
    target = np.asarray(tracked_output(SPEC, HOME)) + 0.05
    reference = np.repeat(target[None], STEPS + BEYOND, axis=0)
    run = executor()
    first = NumpyPolicy(SPEC, layers, NumpyBase(SPEC, pi_control(0.2)))
    run.follow(first, reference, hand_over=True)
    assert first.base is not None
    integral, before = first.base.memory[2:4].copy(), first.base.memory.copy()
    assert np.abs(integral).max() > 1e-3
    same = NumpyPolicy(SPEC, layers, NumpyBase(SPEC, pi_control(0.5)))  # another authority, the same base
    after = run.follow(same, reference, hand_over=True)
    assert after.memory is not None
    np.testing.assert_array_equal(after.memory[2:4], integral)
    assert after.memory[-2] == before[-2]  # the recent error
    other = NumpyPolicy(SPEC, layers, NumpyBase(SPEC, pi_control(0.5, gain=0.6)))
    again = run.follow(other, reference, hand_over=True)  # another base knows nothing of this one's integral
    assert again.memory is not None
    np.testing.assert_array_equal(again.memory[2:4], 0.0)


def test_a_learned_part_that_is_handed_over_is_trusted_again_without_a_jump():
    weights = random_policy(SPEC, 0, 0.0)
    layers = [(weights[f"policy.{i}.weight"], weights[f"policy.{i}.bias"]) for i in range(3)]
    layers[-1] = (layers[-1][0], np.full(2, 9.0, np.float32))  # as far from the base as it may go
    reference = np.repeat(np.asarray(tracked_output(SPEC, HOME))[None], STEPS + BEYOND, axis=0)
    run = executor()
    first = NumpyPolicy(SPEC, layers, NumpyBase(SPEC, pi_control(0.5)._replace(error_limit=1e-6)))
    before = run.follow(first, reference, hand_over=True)
    assert first.base is not None
    assert first.base.memory[-1] == 0.0  # taken back within the chunk
    second = NumpyPolicy(SPEC, layers, NumpyBase(SPEC, pi_control(0.5)))
    after = run.follow(second, reference, hand_over=True)
    assert second.base is not None
    assert second.base.memory[-1] == 1.0
    fading = round(HAND_OVER_S / SPEC.period_s)
    commands = np.concatenate([before.commands[-1:], after.commands[: fading + 1]])
    assert np.abs(np.diff(commands, axis=0)).max() < 2 * 0.5 / fading
    assert np.abs(commands[-1] - commands[0]).max() > 0.3


def test_a_stream_holds_its_last_point_and_then_ends():
    here = np.asarray(tracked_output(SPEC, HOME))
    stream = Stream(SPEC, circle(here, 10), HOME)
    first = stream.next_chunk()
    assert first is not None
    np.testing.assert_allclose(first[:10], circle(here, 10), atol=1e-6)
    np.testing.assert_allclose(first[10:], circle(here, 10)[-1:].repeat(STEPS + BEYOND - 10, 0), atol=1e-6)
    for _ in range(WAIT_CHUNKS):
        chunk = stream.next_chunk()
        assert chunk is not None
        np.testing.assert_allclose(chunk, chunk[:1].repeat(len(chunk), 0))
    assert stream.next_chunk() is None


@pytest.mark.parametrize("points", [np.zeros((3, 5)), np.full((3, 2), np.nan), np.zeros(3)])
def test_points_that_are_none(points):
    with pytest.raises(Refusal, match="2 finite numbers each"):
        Stream(SPEC, points, HOME)


def test_work_without_a_point_is_refused_before_a_chunk_of_no_length_reaches_the_loop():
    with pytest.raises(Refusal, match="no point"):
        Stream(SPEC, np.zeros((0, 2)), HOME)
    stream = Stream(SPEC, circle(np.asarray(tracked_output(SPEC, HOME)), 10), HOME)
    with pytest.raises(Refusal, match="no point"):
        stream.add(np.zeros((0, 2)))
    chunk = stream.next_chunk()
    assert chunk is not None
    assert len(chunk) == STEPS + BEYOND


def test_a_jump_is_named_where_it_is_also_before_the_first_chunk():
    here = np.asarray(tracked_output(SPEC, HOME))
    with pytest.raises(Refusal, match="begins 5 away"):
        Stream(SPEC, circle(here + 5.0, 10), HOME)
    stream = Stream(SPEC, circle(here, 10), HOME)
    assert stream.done == 0
    with pytest.raises(Refusal, match="jumps at point 0"):
        stream.add(np.full((3, 2), 7.0))


def test_a_stream_does_not_pile_up():
    stream = Stream(SPEC, circle(np.asarray(tracked_output(SPEC, HOME)), 10), HOME)
    with pytest.raises(Refusal, match="points wait already"):
        stream.add(np.zeros((60_000, 2)))
