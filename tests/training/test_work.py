"""Learning from a stream of work: what is remembered, how conditions are recognised, what a bad policy leads to."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from work_blocks import SETTINGS, block_of_work, learner_of, on_base, with_memory

from firsthand.agent import LearnerState
from firsthand.errors import UserError
from firsthand.models import Dynamics
from firsthand.optim.rollout import Rollout
from firsthand.training.base_guard import BaseSettings
from firsthand.training.work import ChunkStore, WorkLearner, WorkSettings
from firsthand.training.work.contexts import Choice, Context, choose_context, forecast_error
from firsthand.training.work.learner import Update
from firsthand.training.work.standing import Standing, judge_block
from firsthand_onboard.features import next_state
from firsthand_onboard.toy import toy_spec

SPEC = toy_spec(hidden=(8,), steps=24)


def rollout_at(level: float, trajectories: int = 1) -> Rollout:
    """Trajectories that stand at a level."""
    states = np.full((trajectories, 7, SPEC.layout.size), level, np.float32)
    return Rollout.from_arrays(jnp.asarray(states), jnp.zeros((trajectories, 6, 2)), jnp.zeros((trajectories, 6, 2)))


def levels(store: ChunkStore) -> list[float]:
    return [round(float(chunk.states[0, 0]), 3) for chunk in store.chunks]


def test_what_happened_once_is_kept_and_what_happens_all_day_is_kept_once_and_new():
    store = ChunkStore(SPEC, capacity=6, recent=2)
    for level in (5.0, -3.0, *(0.001 * k for k in range(50))):
        rollout = rollout_at(level)
        store.add(rollout, rollout.valid)
    assert len(store.chunks) == 6
    assert levels(store)[:2] == [5.0, -3.0]  # by age they would have gone first
    assert levels(store)[-2:] == [0.048, 0.049]
    buffer = store.buffer(64)
    assert int(buffer.size) == int(buffer.num_sound) == 36
    assert buffer.capacity == 64
    assert float(buffer.states[0, 0]) == 5.0
    with pytest.raises(ValueError, match="recent is 6"):
        ChunkStore(SPEC, capacity=6, recent=6)


def test_rows_that_are_not_sound_are_not_learned_from():
    store, rollout = ChunkStore(SPEC, capacity=6, recent=2), rollout_at(1.0, 2)
    store.add(rollout, rollout.valid.at[0, :4].set(False))
    buffer = store.buffer(32)
    assert int(buffer.size) == 12
    assert int(buffer.num_sound) == 8
    assert np.asarray(buffer.sound_rows[:2]).tolist() == [4, 5]


@pytest.fixture(scope="module")
def learner_state() -> LearnerState:
    return LearnerState.random(SPEC, SETTINGS, seed=0)


def driven(model: Dynamics, seed: int = 0, trajectories: int = 3) -> tuple[Rollout, np.ndarray]:
    """What a machine does that is the model, under random commands."""
    rng = np.random.default_rng(seed)
    commands = rng.uniform(-1, 1, (trajectories, 24, 2)).astype(np.float32)
    states = []
    for mine in commands:
        state = np.zeros(SPEC.layout.size, np.float32)
        path = [state]
        for command in mine:
            after = np.asarray(model(jnp.asarray(state), jnp.asarray(command)))[:4]
            state = next_state(SPEC.layout, state, command, after)
            path.append(state)
        states.append(path)
    rollout = Rollout.from_arrays(jnp.asarray(states), jnp.asarray(commands), jnp.zeros((trajectories, 24, 2)))
    return rollout, commands


def test_a_model_misses_nothing_of_itself_and_something_of_another(learner_state):
    *hidden, (weight, bias) = learner_state.dynamics.layers
    lively = dataclasses.replace(learner_state.dynamics, layers=(*hidden, (5 * weight, bias)))
    knows = dataclasses.replace(learner_state, dynamics=lively)
    rollout, _ = driven(lively)
    assert forecast_error(knows, rollout, rollout.valid) < 1e-4
    still = jax.tree.map(jnp.zeros_like, lively.layers)
    nothing = dataclasses.replace(knows, dynamics=dataclasses.replace(lively, layers=still))
    assert forecast_error(nothing, rollout, rollout.valid) > 0.2
    assert math.isnan(forecast_error(knows, rollout, jnp.zeros_like(rollout.valid)))


def test_a_machine_that_stands_says_nothing_about_its_conditions(learner_state):
    rng, scale = np.random.default_rng(0), np.asarray(SPEC.scales.change_scale)
    states = np.zeros((3, 25, SPEC.layout.size), np.float32)
    states[..., :4] += 0.1 * scale * rng.standard_normal((3, 25, 4))
    rollout = Rollout.from_arrays(jnp.asarray(states), jnp.zeros((3, 24, 2)), jnp.zeros((3, 24, 2)))
    assert math.isnan(forecast_error(learner_state, rollout, rollout.valid))


def contexts(*usual: float) -> list[Any]:
    return [Context(state=None, store=None, born=0, used=0, usual=value) for value in usual]  # pyright: ignore


@pytest.mark.parametrize(
    ("usual", "current", "missed", "expected"),
    [
        ((0.1, 0.1), 0, [0.1, 0.3], (Choice.SAME, 0)),
        ((0.1, 0.1), 0, [0.3, 0.11], (Choice.KNOWN, 1)),
        ((0.1, 0.1), 0, [0.3, 0.28], (Choice.NEW, 1)),  # neither fits: a new one from the nearer
        ((0.1, 0.1), 0, [0.3, 0.2], (Choice.NEW, 1)),  # nearer, but not as it was
        ((0.1,), 0, [0.3], (Choice.NEW, 0)),
        ((math.nan,), 0, [0.9], (Choice.SAME, 0)),  # nothing is usual yet
        ((0.1, 0.1), 1, [math.nan, math.nan], (Choice.SAME, 1)),
    ],
)
def test_conditions_are_told_by_which_model_fits(usual, current, missed, expected):
    choice, number = choose_context(contexts(*usual), current, missed, better=0.85, surprise=1.4)
    assert (choice, number) == expected
    assert isinstance(choice, Choice)


def test_a_choice_is_written_as_the_text_that_it_is():
    assert [f"{choice}" for choice in Choice] == ["same", "known", "new"]
    assert Choice.NEW == "new"


def test_bad_settings():
    with pytest.raises(UserError, match="chunks is 10"):
        WorkSettings(chunks=10, recent_chunks=10)
    with pytest.raises(UserError, match="eager_updates is 0"):
        WorkSettings(eager_updates=0)
    with pytest.raises(UserError, match="between 0 and 1"):
        WorkSettings(better=1.2)


def test_a_policy_that_is_worse_twice_is_taken_back(work_task):
    learner, task = learner_of(work_task), work_task
    context = learner.contexts[0]
    state = context.state
    assert [learner._judge(context, 1.0) for _ in range(3)] == [False] * 3
    context.state = changed(state)
    radius = float(context.state.radius)
    assert not learner._judge(context, 2.0)
    assert learner._judge(context, 2.0)
    assert same_policy(context.state, state)
    assert float(context.state.radius) == pytest.approx(0.5 * radius)
    with pytest.raises(ValueError, match="a block has 2 trajectories"):
        learner.take(block_of_work(task, 3))


def test_a_spike_is_not_an_error_of_the_policy(make_probe_task):
    task = make_probe_task(
        measured=2, command_memory=2, steps=20, preview=(1,), command_limit=1.0, length_scale=1.0, change_weight=0.01
    )
    learner, still = learner_of(task), block_of_work(task, 2)
    still.measured[...], still.references[...] = 0.0, 0.1
    first = learner.contexts[0].state
    learner.take(still)
    assert learner.adopt(Update(0, first, changed(first)))
    spiked = dataclasses.replace(still, measured=still.measured.copy())
    spiked.measured[:, 3, 0] = 5.0
    for ran in (None, 1):  # also where the policy has run the last trajectory only
        report = learner.take(spiked, ran=ran)
        assert report.error == pytest.approx(0.1)
        assert not report.taken_back
    assert learner.contexts[0].history == []
    assert learner.contexts[0].error == pytest.approx(0.1)


def test_what_was_predicted_and_refined_for_a_policy_goes_with_it(work_task):
    learner = learner_of(work_task)
    first = learner.contexts[0].state
    learner.take(block_of_work(work_task, 2, 0.1))
    bad = changed(first)
    ahead = jnp.ones_like(bad.refinement.ahead)
    refinement = dataclasses.replace(bad.refinement, direction=ahead, active=jnp.asarray(True), ahead=ahead)
    bad = dataclasses.replace(bad, refinement=refinement, expected_cost=jnp.asarray(0.02, jnp.float32))
    assert learner.adopt(Update(0, first, bad))
    assert [learner.take(block_of_work(work_task, 2, 1.0)).taken_back for _ in range(2)] == [False, True]
    now = learner.contexts[0].state
    assert math.isnan(float(now.expected_cost))
    assert not bool(now.refinement.active)
    assert not np.asarray(now.refinement.ahead).any()  # the next steps begin with the policy that runs
    assert not np.asarray(now.refinement.direction).any()


def same_policy(one: LearnerState, other: LearnerState) -> bool:
    leaves = zip(jax.tree.leaves(one.policy), jax.tree.leaves(other.policy), strict=True)
    return all(np.array_equal(a, b) for a, b in leaves)


def changed(state: LearnerState) -> LearnerState:
    return dataclasses.replace(state, policy=jax.tree.map(lambda leaf: leaf + 1, state.policy))


def test_a_policy_is_not_called_good_for_a_block_that_another_one_ran(work_task):
    learner = learner_of(work_task)
    first = learner.contexts[0].state
    learner.take(block_of_work(work_task, 2, 0.1))
    assert learner.adopt(Update(0, first, changed(first)))
    learner.take(block_of_work(work_task, 2, 0.1), ran=0)  # it was still the old policy's
    reports = [learner.take(block_of_work(work_task, 2, 1.0)) for _ in range(2)]
    assert [report.taken_back for report in reports] == [False, True]
    assert same_policy(learner.contexts[0].state, first)


def test_an_update_of_a_policy_that_was_taken_back_is_thrown_away(work_task):
    learner = learner_of(work_task)
    first = learner.contexts[0].state
    learner.take(block_of_work(work_task, 2, 0.1))
    assert learner.adopt(Update(0, first, changed(first)))
    under_way = Update(0, learner.contexts[0].state, changed(learner.contexts[0].state))
    assert [learner.take(block_of_work(work_task, 2, 1.0)).taken_back for _ in range(2)] == [False, True]
    assert not learner.adopt(under_way)
    assert same_policy(learner.contexts[0].state, first)
    assert not learner.adopt(Update(7, first, first))  # of conditions that are forgotten


def test_new_conditions_take_the_place_of_the_only_ones_where_one_kind_is_remembered(work_task):
    learner = learner_of(work_task, contexts=1)
    learner._begin(0)
    assert list(learner.contexts) == [learner.current] == [1]


def test_an_update_gets_each_chunk_once_also_where_the_newest_blocks_fill_the_store(work_task, monkeypatch):
    learner = learner_of(work_task, blocks=3, chunks=4, recent_chunks=2)
    for seed in range(3):
        learner.take(block_of_work(work_task, 2, seed=seed))
    seen: list[int] = []
    kept = ChunkStore.buffer
    monkeypatch.setattr(ChunkStore, "buffer", lambda self, n: (seen.append(len(self.chunks)), kept(self, n))[1])
    learner.begin_update()
    assert seen == [0]  # all that is kept is in the newest blocks


def authorities(learner: WorkLearner, *errors: float) -> list[float]:
    """What the learned part has in blocks with these errors, one after the other."""
    return [learner.take(with_memory(block_of_work(learner.task, 2, error))).authority for error in errors]


def test_on_a_base_the_learned_part_is_compared_with_it_under_the_same_conditions(work_task):
    learner = on_base(work_task)
    assert learner.is_measuring
    control: Any = learner.controller.policy.control
    assert float(control.authority) == 0.0
    # The base alone, then both, whose authority grows while they are no worse than it.
    assert authorities(learner, 1.0, 1.1, 0.9) == pytest.approx([0.0, 0.4, 0.6])
    standing = learner.contexts[0].standing
    assert standing is not None
    assert standing.base_error == pytest.approx(1.0, rel=0.05)
    # A block with 1.5 times the base's error: the base alone does the next, and is as bad. So the work was.
    assert authorities(learner, 1.5, 1.5, 1.5) == pytest.approx([0.9, 0.0, 0.9])
    # The next time it is not: half the authority, and the last good policy.
    learner.contexts[0].standing = dataclasses.replace(standing, authority=0.8)
    good = learner.contexts[0].good
    assert good is not None
    learner.contexts[0].state = changed_layers(learner.contexts[0].state)
    assert authorities(learner, 3.0, 1.0) == pytest.approx([0.8, 0.0])
    assert same_policy(learner.contexts[0].state, good)
    assert authorities(learner, 1.0) == pytest.approx([0.4])


def changed_layers(state: LearnerState) -> LearnerState:
    policy = state.policy
    layers = jax.tree.map(lambda leaf: leaf + 1, policy.layers)
    return dataclasses.replace(state, policy=dataclasses.replace(policy, layers=layers))


def test_an_operator_takes_the_learned_part_back_and_gives_it_again(work_task):
    learner = on_base(work_task)
    authorities(learner, 1.0, 1.0)
    learner.base_alone = True
    control: Any = learner.controller.policy.control
    assert float(control.authority) == 0.0
    assert authorities(learner, 1.0, 1.0, 1.0) == [0.0, 0.0, 0.0]
    learner.base_alone = False
    assert authorities(learner, 1.0) == pytest.approx([0.6])  # what it had earned


def test_what_the_base_says_of_itself_is_no_praise_of_the_policy(work_task):
    learner = on_base(work_task)
    authorities(learner, 1.0)
    assert learner.contexts[0].good is None
    authorities(learner, 1.0)
    assert learner.contexts[0].good is not None


def test_an_update_counts_with_the_authority_that_the_learned_part_has(work_task, monkeypatch):
    learner = on_base(work_task)
    authorities(learner, 1.0, 1.0)
    seen: list[Any] = []

    def observe(state, experience):
        seen.append(state.learner.policy.control)
        assert experience.memory is not None
        return state, None

    monkeypatch.setattr(learner, "agent", SimpleNamespace(observe=observe))
    assert learner.adopt(learner.begin_update()())
    assert float(seen[0].authority) == pytest.approx(0.6)
    assert float(seen[0].error_limit) < 10.0
    assert authorities(learner, 1.0) == pytest.approx([0.6])


def test_new_conditions_begin_with_the_base_alone_and_little_authority(work_task):
    learner = on_base(work_task)
    authorities(learner, 1.0, 1.0)
    learner._begin(0)
    assert learner.is_measuring
    assert authorities(learner, 1.0, 1.0) == pytest.approx([0.0, BaseSettings().first_authority])


def test_a_trust_that_was_lost_is_judged_by_what_the_base_has_then():
    settings = BaseSettings()
    acting = Standing(0.4, alone=False, base_error=1.0, base_peak=2.0)
    lost, worse = judge_block(acting, settings, error=1.1, peak=3.0, base_share=0.2)
    assert (lost.alone, lost.accused, lost.accused_peak, worse) == (True, 1.1, 3.0, False)
    for peak, authority, guilty in ((2.0, 0.2, True), (2.5, 0.4, False)):
        after, worse = judge_block(lost, settings, error=1.0, peak=peak, base_share=0.0)
        assert (after.authority, worse, after.alone) == (authority, guilty, False)
    assert judge_block(acting, settings, error=math.nan, peak=0.0, base_share=0.0) == (acting, False)
