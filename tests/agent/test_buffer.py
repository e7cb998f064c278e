"""The buffer: what goes in, in which order, and that growing it compiles nothing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.agent.buffer import Buffer, append, append_rollout, has_room, make_room, sample
from firsthand.optim.rollout import Rollout

STATE, COMMANDS, MEASURED = 3, 2, 2


def numbered(trajectories: int, steps: int, *, first: int = 0, lengths=None) -> Rollout:
    """An episode in which every number is unique to its trajectory, step and entry."""
    count = trajectories * (steps + 1)
    index = first + np.arange(count, dtype=np.float32).reshape(trajectories, steps + 1)
    states = np.stack([index, index + 0.25, index + 0.5], axis=-1)
    commands = np.stack([-index[:, :-1], index[:, :-1] + 0.75], axis=-1)
    lengths = np.full(trajectories, steps) if lengths is None else np.asarray(lengths)
    return Rollout(
        states=jnp.asarray(states),
        commands=jnp.asarray(commands),
        previews=jnp.asarray(np.zeros((trajectories, steps, 2, 1), np.float32)),
        free=jnp.asarray(np.ones((trajectories, steps, COMMANDS), bool)),
        valid=jnp.asarray(np.arange(steps) < lengths[:, None]),
    )


def transitions(rollout: Rollout):
    """The valid transitions one by one, in order of arrival."""
    rows = []
    for i in range(rollout.states.shape[0]):
        for k in range(rollout.commands.shape[1]):
            if bool(rollout.valid[i, k]):
                rows.append((rollout.states[i, k], rollout.commands[i, k], rollout.states[i, k + 1, :MEASURED]))
    return [np.asarray(part) for part in zip(*rows, strict=True)]


def contents(buffer: Buffer):
    size = int(buffer.size)
    return [np.asarray(part)[:size] for part in (buffer.states, buffer.commands, buffer.following)]


def assert_holds(buffer: Buffer, *rollouts: Rollout):
    expected = [np.concatenate(parts) for parts in zip(*(transitions(r) for r in rollouts), strict=True)]
    assert int(buffer.size) == len(expected[0])
    for held, wanted in zip(contents(buffer), expected, strict=True):
        np.testing.assert_array_equal(held, wanted)
    change = expected[2] - expected[0][:, :MEASURED]
    np.testing.assert_allclose(buffer.squares, np.sum(change**2, axis=0), rtol=1e-5)


@pytest.mark.parametrize(("asked", "given"), [(1, 2), (5, 8), (8, 8), (9, 16), (1000, 1024)])
def test_the_capacity_is_a_power_of_two(asked, given):
    buffer = Buffer.empty(asked, STATE, COMMANDS, MEASURED)
    assert buffer.capacity == given
    assert buffer.states.shape == (given, STATE)
    assert int(buffer.size) == 0


def test_an_episode_gives_exactly_n_times_h_transitions_in_order():
    first, second = numbered(3, 4), numbered(3, 4, first=100)
    buffer = append(append(Buffer.empty(64, STATE, COMMANDS, MEASURED), first), second)
    assert int(buffer.size) == 2 * 3 * 4
    assert_holds(buffer, first, second)


@pytest.mark.parametrize("lengths", [(4, 1, 3), (0, 4, 0), (0, 0, 0)])
def test_cut_trajectories_add_what_happened_and_nothing_else(lengths):
    before, cut, after = numbered(3, 4), numbered(3, 4, first=100, lengths=lengths), numbered(3, 4, first=200)
    buffer = append(Buffer.empty(64, STATE, COMMANDS, MEASURED), before)
    buffer = append(buffer, cut)
    assert int(buffer.size) == 12 + sum(lengths)
    if sum(lengths):
        assert_holds(buffer, before, cut)
    buffer = append(buffer, after)
    assert_holds(buffer, *([before, cut, after] if sum(lengths) else [before, after]))


def test_beyond_its_capacity_the_buffer_grows_and_keeps_everything():
    episodes = [numbered(3, 4, first=100 * i, lengths=(4, 4 - i % 3, 4)) for i in range(7)]
    buffer = Buffer.empty(16, STATE, COMMANDS, MEASURED)
    for i, episode in enumerate(episodes):
        buffer = append(buffer, episode)
        assert_holds(buffer, *episodes[: i + 1])
    assert buffer.capacity == 128  # 77 rows, and the last episode was written as a block of 12


def test_an_episode_larger_than_twice_the_buffer_fits():
    episode = numbered(5, 10)
    assert_holds(append(Buffer.empty(4, STATE, COMMANDS, MEASURED), episode), episode)


def test_making_room_keeps_the_transitions():
    episode = numbered(2, 3)
    buffer = make_room(append(Buffer.empty(8, STATE, COMMANDS, MEASURED), episode), 94)
    assert buffer.capacity == 128
    assert_holds(buffer, episode)
    assert make_room(buffer, 122) is buffer


def test_several_buffers_have_room_where_the_fullest_has():
    empty = Buffer.empty(16, STATE, COMMANDS, MEASURED)
    filled = append(Buffer.empty(16, STATE, COMMANDS, MEASURED), numbered(2, 3))
    assert has_room(empty, 16)
    assert not has_room(empty, 17)
    both = jax.tree.map(lambda *parts: jnp.stack(parts), empty, filled)
    assert has_room(both, 10)
    assert not has_room(both, 11)


def test_several_buffers_are_written_side_by_side():
    episodes = [numbered(3, 4, lengths=(4, 1, 3)), numbered(3, 4, first=100)]
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *episodes)
    empty = Buffer.empty(16, STATE, COMMANDS, MEASURED)
    both = jax.vmap(append_rollout)(jax.tree.map(lambda a: jnp.stack([a, a]), empty), stacked)
    for i, episode in enumerate(episodes):
        assert_holds(jax.tree.map(lambda a, i=i: a[i], both), episode)


def test_appending_compiles_once(compilations):
    buffer = append(Buffer.empty(256, STATE, COMMANDS, MEASURED), numbered(3, 4))
    with compilations() as compiled:
        for i in range(1, 15):
            buffer = append(buffer, numbered(3, 4, first=100 * i, lengths=(4, i % 5, 2)))
    assert compiled.count == 0
    with compilations() as compiled:
        append(Buffer.empty(512, STATE, COMMANDS, MEASURED), numbered(3, 4))
    assert compiled.count > 0  # the counter counts


def test_samples_come_from_the_rows_in_use_and_reach_all_of_them():
    buffer = append(Buffer.empty(64, STATE, COMMANDS, MEASURED), numbered(2, 5, lengths=(5, 2)))
    used = int(buffer.size)
    unused = np.arange(buffer.capacity)[:, None] >= used
    states, commands, following = (
        jnp.asarray(np.where(unused, np.nan, a)) for a in (buffer.states, buffer.commands, buffer.following)
    )
    buffer = dataclasses.replace(buffer, states=states, commands=commands, following=following)
    states, commands, following = (np.asarray(a) for a in sample(buffer, 2000, key=jax.random.key(0)))
    assert np.all(np.isfinite(states))
    rows, counts = np.unique(states[:, 0], return_counts=True)
    np.testing.assert_array_equal(rows, contents(buffer)[0][:, 0])
    assert np.all(np.abs(counts / 2000 - 1 / used) < 4 * np.sqrt(1 / used / 2000))  # uniform, to four deviations
    # The three parts of a sample belong together.
    np.testing.assert_array_equal(commands[:, 0], -states[:, 0])
    np.testing.assert_array_equal(following[:, 0], states[:, 0] + 1)


def test_an_empty_buffer_can_be_sampled():
    """The compiled update also runs when every trajectory was cut at once; it sees zeros, never NaN."""
    drawn = sample(Buffer.empty(8, STATE, COMMANDS, MEASURED), 4, key=jax.random.key(0))
    for part in drawn:
        np.testing.assert_array_equal(part, 0.0)


def test_only_sound_rows_are_sampled_and_all_rows_are_kept():
    episode = numbered(2, 5, lengths=(5, 2))
    sound = jnp.ones((2, 5), bool).at[jnp.asarray([0, 1]), jnp.asarray([2, 0])].set(False)
    buffer = append(append(Buffer.empty(64, STATE, COMMANDS, MEASURED), episode, sound), numbered(2, 5, first=100))
    assert int(buffer.size) == 7 + 10
    assert np.asarray(buffer.sound_rows)[: int(buffer.num_sound)].tolist() == [0, 1, 3, 4, 6, *range(7, 17)]
    states, _, _ = sample(buffer, 2000, key=jax.random.key(0))
    drawn = {int(np.flatnonzero((np.asarray(buffer.states) == state).all(axis=1))[0]) for state in np.asarray(states)}
    assert drawn == {0, 1, 3, 4, 6, *range(7, 17)}
    rows = np.asarray([0, 1, 3, 4, 6, *range(7, 17)])
    change = np.asarray(buffer.following)[rows] - np.asarray(buffer.states)[rows, :MEASURED]
    np.testing.assert_allclose(buffer.squares, np.sum(change**2, axis=0), rtol=1e-5)
