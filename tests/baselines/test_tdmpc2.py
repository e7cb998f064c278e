"""TD-MPC2 as an agent: what it remembers, learns and refuses, and a task whose optimum is known."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.runs import packed
from firsthand_lab.baselines.tdmpc2 import Agent, Config, default, official_smallest, reduced
from firsthand_lab.baselines.tdmpc2.replay import Replay

from .tdmpc2_tools import TINY, Line, line_agent, run_episode

# The replay buffer


def test_slices_never_cross_an_episode_and_whole_episodes_are_dropped():
    replay = Replay(100, 1, 1, horizon=3)
    rng = np.random.default_rng(0)
    number = 0
    for episode in range(40):
        length = int(rng.integers(1, 25))
        for t in range(length):
            now = 1000 * episode + t
            replay.add(np.array([now]), np.array([t]), now + 0.5, np.array([now + 1]), last=t == length - 1)
        number += 1
        if not replay.slices:
            continue
        batch = replay.sample(200, rng)
        observations = np.asarray(batch.observations)[..., 0]
        assert observations.shape == (4, 200)
        np.testing.assert_array_equal(np.diff(observations, axis=0), 1.0)
        np.testing.assert_array_equal(np.asarray(batch.actions)[..., 0], observations[:-1] % 1000)
        np.testing.assert_array_equal(batch.rewards, observations[:-1] + 0.5)
        assert observations.max() // 1000 <= episode
    assert 1 < replay.episodes < number
    assert observations.min() // 1000 > 25  # the oldest are gone


def test_an_open_episode_is_not_sampled_and_a_new_first_step_forgets_it():
    agent = line_agent()
    for t in range(6):
        agent.remember(np.zeros(1), np.zeros(1), 0.0, np.zeros(1), first=t == 0, last=False)
    assert agent.replay.slices == 0
    for t in range(4):
        agent.remember(np.ones(1), np.zeros(1), 0.0, np.ones(1), first=t == 0, last=t == 3)
    assert agent.replay.slices == 2
    assert np.asarray(agent.replay.sample(20, np.random.default_rng(0)).observations).min() == 1.0


# The agent


@pytest.mark.slow
def test_it_learns_to_go_straight_to_the_target():
    agent = line_agent()
    rng = np.random.default_rng(0)
    for _ in range(40):
        run_episode(agent, rng, explore=True)
    assert agent.updates == agent.steps == 800
    results = np.array([run_episode(agent, rng, explore=False) for _ in range(5)])
    regret = (results[:, 1] - results[:, 0]) / Line.length
    assert (regret > -1e-6).all()
    assert regret.mean() < 0.05  # standing still costs 0.7 per step more than the best, random actions about as much


def test_nothing_is_compiled_again(compilations):
    agent = line_agent()
    rng = np.random.default_rng(0)
    for _ in range(6):
        run_episode(agent, rng, explore=True)
    run_episode(agent, rng, explore=False)
    with compilations() as compiled:
        for _ in range(2):
            run_episode(agent, rng, explore=True)
            run_episode(agent, rng, explore=False)
    assert compiled.count == 0


def test_a_restored_agent_goes_on_with_the_same_bits():
    agent, rng = line_agent(), np.random.default_rng(0)
    for _ in range(5):
        run_episode(agent, rng, explore=True)
    agent.remember(np.ones(1), np.zeros(1), 0.0, np.ones(1), first=True, last=False)
    data = packed.pack(agent.snapshot(), {})
    other = line_agent()
    other.restore(packed.unpack(data)[0])
    copies = (agent, np.random.default_rng(1)), (other, np.random.default_rng(1))
    returns = [[run_episode(a, r, explore=e) for e in (True, True, False)] for a, r in copies]
    assert returns[0] == returns[1]
    ours, theirs = agent.snapshot(), other.snapshot()
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def test_a_snapshot_is_not_changed_by_later_updates():
    agent, rng = line_agent(), np.random.default_rng(0)
    for _ in range(5):
        run_episode(agent, rng, explore=True)
    kept = agent.snapshot()
    copies = {name: array.copy() for name, array in kept.items()}
    agent.learn(3)
    for name, array in kept.items():
        np.testing.assert_array_equal(array, copies[name], err_msg=name)


def test_a_snapshot_of_another_seed_is_refused():
    snapshot = line_agent(seed=1).snapshot()
    with pytest.raises(UserError, match="seed 1"):
        line_agent(seed=2).restore(snapshot)


def test_the_seed_steps_are_made_up_for_at_once():
    agent = line_agent(dataclasses.replace(TINY, updates_per_step=0.5))
    assert agent.seed_steps == 80
    for step in range(83):
        assert agent.due == (0 if step < 80 else step // 2)
        t = step % 20
        agent.remember(np.zeros(1), np.zeros(1), 0.0, np.zeros(1), first=t == 0, last=t == 19)
    agent.updates = 40
    assert agent.due == 1


# Settings


def test_sizes_and_schedules_are_the_published_ones():
    sizes = {"default": default(), "smallest": official_smallest(), "reduced": reduced()}
    agents = {
        name: Agent(dataclasses.replace(c, capacity=10), 5, 1, seed=0, episode_length=500) for name, c in sizes.items()
    }
    # Encoder, dynamics, reward, policy: weights, biases, and gain and offset where normalised.
    encoder = 5 * 256 + 3 * 256 + 256 * 128 + 3 * 128
    body = 384 * 384 + 6 * 384
    dynamics = 129 * 384 + body + 384 * 128 + 3 * 128
    head = 129 * 384 + body + 384 * 101 + 101
    policy = 128 * 384 + body + 384 * 2 + 2
    assert agents["smallest"].parameters == encoder + dynamics + 3 * head + policy
    assert agents["default"].parameters == encoder + dynamics + 6 * head + policy
    assert agents["default"].discount == pytest.approx(0.99)
    assert agents["default"].seed_steps == 2500
    assert default().discount(20) == 0.95
    assert default().discount(5000) == 0.995
    assert default().seed_steps(100) == 1000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("latent", 100),
        ("members", 1),
        ("elites", 600),
        ("policy_samples", 512),
        ("rho", 0.0),
        ("dropout", 1.0),
        ("std_high", 0.01),
        ("bin_high", float("nan")),
        ("discount_low", 0.999),
        ("batch", 2.5),
        ("updates_per_step", 0.0),
        ("rate", float("inf")),
    ],
)
def test_a_wrong_setting_gets_one_sentence(field: str, value: float):
    with pytest.raises(UserError) as caught:
        dataclasses.replace(Config(), **{field: value})
    message = str(caught.value)
    assert message.startswith(f"{field} is {value}, but must be ")
    assert message.endswith(".")
    assert "\n" not in message


def test_wrong_use_gets_one_sentence():
    agent = line_agent()
    with pytest.raises(UserError, match="no finished episode"):
        agent.learn(1)
    with pytest.raises(UserError, match="1 finite numbers"):
        agent.act(np.zeros(2), first=True, explore=False)
    with pytest.raises(UserError, match="reward"):
        agent.remember(np.zeros(1), np.zeros(1), float("nan"), np.zeros(1), first=True, last=False)
    with pytest.raises(UserError, match="episode_length"):
        Agent(TINY, 1, 1, seed=0, episode_length=2)


def test_it_needs_neither_torch_nor_dm_control():
    program = (
        "import sys, firsthand_lab.baselines.tdmpc2; print([m for m in ('torch', 'dm_control') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
