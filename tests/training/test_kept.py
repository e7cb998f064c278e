import numpy as np
import pytest

from firsthand.training.recorder import FRESH_EPISODES, PolicyKeeper, aged_proof, find_kept, proof


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([4.0], 4.0),
        ([9.0, 3.0], 6.0),  # one good episode after a bad one proves little
        ([100.0, 3.0, 2.0, 1.0], 2.0),  # the three last ones
        ([1.0, 1.0, 4.0], 4.0),  # a bad episode of its own counts in full
        ([np.nan, 3.0, 2.0], 2.5),  # an episode in which nothing was measured says nothing
    ],
)
def test_a_policy_is_proven_by_its_own_episode_and_the_ones_before(errors, expected):
    assert proof(errors) == pytest.approx(expected)


def test_an_episode_in_which_nothing_was_measured_proves_nothing():
    assert not proof([1.0, 1.0, np.nan]) < np.inf


def test_the_keeper_keeps_the_best_proven_policy_of_those_that_were_measured():
    keeper, policies = PolicyKeeper(), [object() for _ in range(5)]
    steps = [(4.0, 1.0), (3.0, 1.0), (1.0, 0.4), (1.5, 1.0), (9.0, 1.0)]  # error, share that was measured
    changed = [
        keeper.consider(policy, episode, error, share)  # pyright: ignore[reportArgumentType]
        for episode, (policy, (error, share)) in enumerate(zip(policies, steps, strict=True), 1)
    ]
    assert changed == [True, True, False, True, False]
    assert keeper.kept is not None
    assert keeper.kept.policy is policies[3]
    assert (keeper.kept.episode, keeper.kept.tracking_error) == (4, 1.5)
    assert keeper.kept.proof == pytest.approx((3.0 + 1.0 + 1.5) / 3)


def test_on_a_machine_that_drifts_the_kept_policy_is_the_best_lately_proven():
    drifting = [1.0 + 0.03 * k for k in range(60)]
    keeper = PolicyKeeper()
    for episode, error in enumerate(drifting, 1):
        keeper.consider(object(), episode, error, 1.0)  # pyright: ignore[reportArgumentType]
    assert keeper.kept is not None
    assert keeper.kept.episode > 60 - 3 * FRESH_EPISODES
    assert find_kept([proof(drifting[: k + 1]) for k in range(60)]) == keeper.kept.episode - 1


def test_learning_that_breaks_down_does_not_cost_the_kept_policy():
    broken = [1.0] * 5 + [5.0] * 40
    assert find_kept([proof(broken[: k + 1]) for k in range(45)]) == 0
    assert aged_proof(1.0, FRESH_EPISODES) == 1.0
    assert find_kept([np.nan, np.nan]) is None
