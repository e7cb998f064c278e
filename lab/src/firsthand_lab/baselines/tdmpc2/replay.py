"""The replay buffer: whole episodes in arrays of fixed size, sampled as slices that never cross an episode's border."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

from firsthand.errors import UserError

from .learning import Batch


class Replay:
    """Finished episodes, the oldest dropped first, and the episode in progress.

    Row i holds an observation, and the action and the reward that followed it. An episode of n steps takes n + 1
    neighbouring rows, because it ends with an observation that no action follows. Only finished episodes are sampled.
    """

    def __init__(self, capacity: int, observation_size: int, action_size: int, *, horizon: int) -> None:
        self.horizon = horizon
        self._observations = np.zeros((capacity, observation_size), np.float32)
        self._actions = np.zeros((capacity, action_size), np.float32)
        self._rewards = np.zeros(capacity, np.float32)
        # First row and number of rows of each episode, oldest first.
        self._episodes: list[tuple[int, int]] = []
        self._starts = np.zeros(0, np.int64)
        self._open: list[tuple[np.ndarray, np.ndarray, float]] = []
        self._next = 0

    @property
    def capacity(self) -> int:
        """How many rows there are."""
        return self._rewards.shape[0]

    @property
    def episodes(self) -> int:
        """How many finished episodes are kept."""
        return len(self._episodes)

    @property
    def slices(self) -> int:
        """How many different slices can be sampled."""
        return len(self._starts)

    def add(
        self,
        observation: Float[np.ndarray, " observation"],
        action: Float[np.ndarray, " action"],
        reward: float,
        next_observation: Float[np.ndarray, " observation"],
        *,
        last: bool,
    ) -> None:
        """Append a step to the episode in progress; with `last` the episode is finished and can be sampled."""
        self._open.append((np.array(observation, np.float32), np.array(action, np.float32), float(reward)))
        if last:
            self._close(np.asarray(next_observation, np.float32))

    def drop_open(self) -> None:
        """Forget the episode in progress."""
        self._open = []

    def _close(self, final: np.ndarray) -> None:
        rows = len(self._open) + 1
        if rows > self.capacity:
            raise UserError(f"capacity is {self.capacity}, but an episode of {rows - 1} steps needs at least {rows}.")
        begin = self._next if self._next + rows <= self.capacity else 0
        end = begin + rows
        self._episodes = [(b, n) for b, n in self._episodes if b + n <= begin or b >= end]
        self._observations[begin : end - 1] = [step[0] for step in self._open]
        self._actions[begin : end - 1] = [step[1] for step in self._open]
        self._rewards[begin : end - 1] = [step[2] for step in self._open]
        self._observations[end - 1], self._actions[end - 1], self._rewards[end - 1] = final, 0.0, 0.0
        self._episodes.append((begin, rows))
        self._next, self._open = end, []
        self._index()

    def _index(self) -> None:
        starts = [
            np.arange(begin, begin + rows - self.horizon) for begin, rows in self._episodes if rows > self.horizon
        ]
        self._starts = np.concatenate(starts) if starts else np.zeros(0, np.int64)

    def sample(self, count: int, rng: np.random.Generator) -> Batch:
        """`count` slices, every possible one with equal chance."""
        rows = self._starts[rng.integers(len(self._starts), size=count)] + np.arange(self.horizon + 1)[:, None]
        return self.slices_at(rows)

    def slices_at(self, rows: Int[np.ndarray, "horizon+1 batch"]) -> Batch:
        """The slices with these rows."""
        return Batch(self._observations[rows], self._actions[rows[:-1]], self._rewards[rows[:-1]])  # pyright: ignore

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything that is kept, by name. Rows that were never used are left out."""
        used = max((begin + rows for begin, rows in self._episodes), default=0)
        sizes = self._observations.shape[1], self._actions.shape[1]
        return {
            "observations": self._observations[:used].copy(),
            "actions": self._actions[:used].copy(),
            "rewards": self._rewards[:used].copy(),
            "episodes": np.array(self._episodes, np.int64).reshape(-1, 2),
            "next": np.array(self._next),
            "open.observations": np.array([s[0] for s in self._open], np.float32).reshape(-1, sizes[0]),
            "open.actions": np.array([s[1] for s in self._open], np.float32).reshape(-1, sizes[1]),
            "open.rewards": np.array([s[2] for s in self._open], np.float64),
        }

    def from_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take over what `to_arrays` gave."""
        used = len(arrays["rewards"])
        if used > self.capacity or arrays["observations"].shape[1:] != self._observations.shape[1:]:
            raise UserError(
                f"the stored replay buffer has {used} rows of {arrays['observations'].shape[1]} observations, "
                f"and here there are {self.capacity} rows of {self._observations.shape[1]}."
            )
        self._observations[:used] = arrays["observations"]
        self._actions[:used] = arrays["actions"]
        self._rewards[:used] = arrays["rewards"]
        self._episodes = [(int(begin), int(rows)) for begin, rows in arrays["episodes"]]
        self._next = int(arrays["next"])
        opened = (arrays["open.observations"], arrays["open.actions"], arrays["open.rewards"])
        self._open = [(np.array(o), np.array(a), float(r)) for o, a, r in zip(*opened, strict=True)]
        self._index()
