import numpy as np
import pytest

from firsthand.training.loop import proof


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
