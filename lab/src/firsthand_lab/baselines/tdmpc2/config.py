"""The settings of TD-MPC2, checked where they are made."""

import dataclasses
import math
from dataclasses import dataclass

from firsthand.errors import UserError


@dataclass(frozen=True)
class Config:
    """Everything that TD-MPC2 leaves open.

    The defaults are the published ones with the smallest official network sizes (1 M parameters). One field differs:
    that size has two Q functions and the algorithm as published has five; here it is five. `official_smallest` has two.
    """

    latent: int = 128
    """Size of the latent state z."""
    group: int = 8
    """SimNorm: z is cut into groups of this size, each a point of a simplex."""
    encoder_width: int = 256
    """Units per hidden layer of the encoder."""
    encoder_layers: int = 2
    """Layers of the encoder, the last one included."""
    width: int = 384
    """Units of the two hidden layers of every other network."""
    members: int = 5
    """Q functions in the ensemble."""
    dropout: float = 0.01
    """Share of units left out in the first layer of the Q functions while learning."""

    bins: int = 101
    """Rewards and values are predicted as a distribution over this number of bins."""
    bin_low: float = -10.0
    """Middle of the lowest bin, in symlog units."""
    bin_high: float = 10.0
    """Middle of the highest bin, in symlog units."""

    horizon: int = 3
    """Steps that are unrolled in learning and in planning."""
    batch: int = 256
    """Slices of `horizon + 1` observations per update."""
    rho: float = 0.5
    """ρ: weight of a step relative to the one before it in all losses."""
    consistency_weight: float = 20.0
    """Weight of the joint-embedding loss."""
    reward_weight: float = 0.1
    """Weight of the reward loss."""
    value_weight: float = 0.1
    """Weight of the Q loss."""
    entropy_weight: float = 1e-4
    """Weight of the policy's entropy per entry of the action, against values in units of the running scale."""
    rate: float = 3e-4
    """Adam's step size."""
    encoder_rate_share: float = 0.3
    """The encoder's step size is this share of `rate`."""
    gradient_limit: float = 20.0
    """A gradient with a larger norm is scaled down to it."""
    target_rate: float = 0.01
    """τ: how far the target Q functions and the running scale move per update."""
    discount_low: float = 0.95
    """Lowest discount; see `discount`."""
    discount_high: float = 0.995
    """Highest discount; see `discount`."""
    discount_share: float = 5.0
    """The discount looks ahead an episode divided by this; see `discount`."""

    samples: int = 512
    """Action sequences per round of planning, those of the policy included."""
    policy_samples: int = 24
    """Action sequences that the policy prior proposes."""
    elites: int = 64
    """Best sequences, to which the sampling distribution is fitted."""
    rounds: int = 6
    """Rounds of planning per action."""
    temperature: float = 0.5
    """Elites are weighed by exp(temperature · (value − best value))."""
    std_low: float = 0.05
    """Lowest standard deviation of the sampling distribution."""
    std_high: float = 2.0
    """Highest standard deviation, with which each action's planning starts."""
    log_std_low: float = -10.0
    """Lowest log standard deviation of the policy prior."""
    log_std_high: float = 2.0
    """Highest log standard deviation of the policy prior."""

    capacity: int = 1_000_000
    """Steps that the replay buffer holds; whole episodes are dropped, oldest first."""
    seed_episodes: int = 5
    """Random actions for this number of episodes …"""
    min_seed_steps: int = 1000
    """… but for at least this number of steps."""
    updates_per_step: float = 1.0
    """Updates per environment step, also for the seed steps, whose updates are made up for when they end."""

    def __post_init__(self) -> None:
        counts = {
            "at least 1": "latent group encoder_width encoder_layers width horizon batch elites rounds capacity",
            "at least 2": "members bins samples",
            "at least 0": "policy_samples seed_episodes min_seed_steps",
        }
        for wanted, names in counts.items():
            for name in names.split():
                value = getattr(self, name)
                if not isinstance(value, int) or isinstance(value, bool) or value < int(wanted.split()[-1]):
                    raise UserError(f"{name} is {value!r}, but must be a whole number of {wanted}.")
        for name in ("rate", "encoder_rate_share", "gradient_limit", "temperature", "std_low", "std_high"):
            self._check(name, lambda v: v > 0, "a positive number")
        for name in ("updates_per_step", "discount_share"):
            self._check(name, lambda v: v > 0, "a positive number")
        for name in ("consistency_weight", "reward_weight", "value_weight", "entropy_weight"):
            self._check(name, lambda v: v >= 0, "zero or a positive number")
        for name in ("rho", "target_rate", "discount_low", "discount_high"):
            self._check(name, lambda v: 0 < v <= 1, "above 0 and at most 1")
        self._check("dropout", lambda v: 0 <= v < 1, "at least 0 and below 1")
        for low, high in (("bin_low", "bin_high"), ("std_low", "std_high"), ("log_std_low", "log_std_high")):
            self._check(low, lambda v: True, "a finite number")
            self._check(high, lambda v, least=low: v > getattr(self, least), f"above {low}, {getattr(self, low)}")
        if self.discount_low > self.discount_high:
            raise UserError(f"discount_low is {self.discount_low}, but must be at most {self.discount_high}.")
        if self.latent % self.group:
            raise UserError(f"latent is {self.latent}, but must be a multiple of group, which is {self.group}.")
        if self.elites > self.samples:
            raise UserError(f"elites is {self.elites}, but must be at most samples, which is {self.samples}.")
        if self.policy_samples >= self.samples:
            raise UserError(
                f"policy_samples is {self.policy_samples}, but must be below samples, which is {self.samples}."
            )

    def _check(self, name: str, test, wanted: str) -> None:
        value = getattr(self, name)
        if not (isinstance(value, int | float) and math.isfinite(value) and test(value)):
            raise UserError(f"{name} is {value!r}, but must be {wanted}.")

    def discount(self, episode_length: int) -> float:
        """γ: looks ahead a fifth of an episode, between the lowest and the highest discount."""
        steps = episode_length / self.discount_share
        return min(max(1 - 1 / steps, self.discount_low), self.discount_high)

    def seed_steps(self, episode_length: int) -> int:
        """Environment steps with random actions before anything is learned."""
        return max(self.seed_episodes * episode_length, self.min_seed_steps)


def default() -> Config:
    """The published settings with the smallest official network sizes and five Q functions."""
    return Config()


def official_smallest() -> Config:
    """`default` with two Q functions, as the official 1 M size has."""
    return dataclasses.replace(Config(), members=2)


def reduced() -> Config:
    """A setting for long runs on two CPU cores: networks of the same widths, less planning and fewer updates.

    Two Q functions as in the official 1 M size, a quarter of the samples, half the rounds, half the batch, and one
    update every other step.
    """
    return dataclasses.replace(
        Config(), members=2, samples=128, policy_samples=8, elites=16, rounds=3, batch=128, updates_per_step=0.5
    )
