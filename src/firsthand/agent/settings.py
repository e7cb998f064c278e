# ruff: noqa: RUF009 (`setting` is a `dataclasses.field`)
"""The agent's settings, in small groups. Each setting is declared here: its meaning, default and allowed values.

The command line's options, `config.json` and the checks all follow from these declarations: to add a setting, add one
line to a group. This module imports neither JAX nor NumPy. `agent.trees` makes settings a pytree: numbers with a
decimal point are leaves, so that a sweep over them is a `jax.vmap`; whole numbers and tuples are part of its structure.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

from ..errors import UserError

Number: TypeAlias = Any
"""A float, or an array of them in a sweep."""

LARGEST_COUNT = 1_000_000
"""No whole number may be larger: far beyond use, and still small enough to count with."""


@dataclass(frozen=True)
class Bounds:
    """The allowed values of a setting, and its description."""

    doc: str
    """Description of the setting, for the command line's help."""
    above: float | None = None
    """The value is larger than this …"""
    minimum: float | None = None
    """… or at least this,"""
    below: float | None = None
    """smaller than this …"""
    maximum: float | None = None
    """… or at most this."""
    at_least: str | None = None
    """Another setting of the group that this one may not be smaller than."""
    option: str | None = None
    """A short option of the command line, in addition to `--group.name`."""

    def allow(self, value: float) -> bool:
        """Whether a number lies within the bounds; NaN and infinities do not, nor what no float can hold."""
        try:
            finite = math.isfinite(value)
        except OverflowError:
            return False
        return (
            finite
            and (self.above is None or value > self.above)
            and (self.minimum is None or value >= self.minimum)
            and (self.below is None or value < self.below)
            and (self.maximum is None or value <= self.maximum)
        )

    @property
    def range(self) -> str:
        """The bounds in words, after "must be"."""
        if self.minimum is not None and self.maximum is not None:
            return f"between {self.minimum:g} and {self.maximum:g}"
        low = [f"above {self.above:g}"] if self.above is not None else []
        low += [f"at least {self.minimum:g}"] if self.minimum is not None else []
        high = [f"below {self.below:g}"] if self.below is not None else []
        high += [f"at most {self.maximum:g}"] if self.maximum is not None else []
        if not high:
            return "a positive number" if self.above == 0 else "zero or a positive number"
        return " and ".join([*low, *high])


def setting(default: float | int | tuple[int, ...], doc: str, **bounds: Any) -> Any:
    """A field of a group: its default, what it does, and its bounds (fields of `Bounds`)."""
    return dataclasses.field(default=default, metadata={"bounds": Bounds(doc, **bounds)})


def is_number(field: "dataclasses.Field[Any]") -> bool:
    """Whether a setting is a number with a decimal point: a leaf of the pytree."""
    return isinstance(field.default, float)


@dataclass(frozen=True)
class Group:
    """Settings that belong together, checked where they are made."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            checked = check_value(f"{self.name}.{field.name}", value, field)
            bounds: Bounds = field.metadata["bounds"]
            if bounds.at_least is not None and not _is_at_least(checked, getattr(self, bounds.at_least)):
                raise UserError(
                    f"{self.name}.{field.name} is {value}, but must be at least {self.name}.{bounds.at_least}, which "
                    f"is {getattr(self, bounds.at_least)}."
                )
            object.__setattr__(self, field.name, checked)


def check_value(name: str, value: Any, field: "dataclasses.Field[Any]") -> Any:
    """The value of a setting as it is kept; one sentence that says what it may be if it is not sound."""
    bounds: Bounds = field.metadata["bounds"]
    if isinstance(field.default, tuple):
        sound = isinstance(value, list | tuple) and len(value) > 0 and all(_is_count(v, bounds) for v in value)
        kept, wanted = tuple(value) if sound else value, f"must list whole numbers of at least {bounds.minimum}"
    elif is_number(field):
        plain = _is_plain(value)
        sound = bounds.allow(value) if plain else all(bounds.allow(v) for v in _entries(value))
        kept, wanted = float(value) if plain and sound else value, f"must be {bounds.range}"
    else:
        sound = _is_count(value, bounds)
        kept, wanted = value, f"must be a whole number from {bounds.minimum} to {LARGEST_COUNT}"
    if not sound:
        raise UserError(f"{name} is {value}, but {wanted}.")
    return kept


def _is_plain(value: Any) -> bool:
    """Whether a value is a number of Python's, not an array."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any, bounds: Bounds) -> bool:
    return _is_plain(value) and isinstance(value, int) and bounds.allow(value) and value <= LARGEST_COUNT


def _entries(value: Any) -> list[float]:
    """The numbers of an array; none of an array that JAX traces, whose numbers are not known."""
    if not hasattr(value, "dtype"):
        return [math.nan]  # a text, for example: no number at all
    try:
        return value.reshape(-1).tolist()
    except TypeError:  # JAX's ConcretizationTypeError is one
        return []


def _is_at_least(value: Any, other: Any) -> bool:
    """Whether `value` ≥ `other`, entry by entry where both are arrays."""
    larger, smaller = ([v] if _is_plain(v) else _entries(v) for v in (value, other))
    pairs = zip(larger, smaller, strict=True) if len(larger) == len(smaller) else itertools.product(larger, smaller)
    return all(a >= b for a, b in pairs)


@dataclass(frozen=True)
class PolicyStepSettings(Group):
    """The gradient and the preconditioned policy step. η, α and ε are the paper's."""

    name: ClassVar[str] = "policy_step"

    eta: Number = setting(0.5, "η, step size of the policy step", above=0, option="eta")
    alpha: Number = setting(
        0.01, "α, weight of the change of commands in the preconditioner", minimum=0, option="alpha"
    )
    epsilon: Number = setting(
        0.05, "ε, weight of the change of parameters in the preconditioner", above=0, option="epsilon"
    )
    discount: Number = setting(
        0.97,
        "γ, factor on the closed loop A + BK in the gradient; below 1 it damps a loop that is not yet stable",
        above=0,
        maximum=1,
        option="discount",
    )
    gradient_limit: Number = setting(
        20.0, "a gradient whose norm exceeds this is computed again with a smaller γ", above=0
    )
    discount_shrink: Number = setting(0.92, "factor on γ each time", above=0, below=1)
    discount_tries: int = setting(6, "how many values of γ are tried at most", minimum=1)
    outlier: Number = setting(
        0.0,
        "a trajectory whose sensitivities (in refinement: whose cost) exceed the median's by this factor is scaled "
        "down to it; 0 turns this off",
        minimum=0,
    )
    initial_command: Number = setting(
        0.1, "scale of the random policy's last layer: the first commands are about this large, of 1", above=0
    )
    steps: int = setting(
        1,
        "policy steps per episode; after the first, the trajectories are the model's, with its measured errors added",
        minimum=1,
    )
    pace_growth: Number = setting(
        1.0,
        "factor on η after each accepted step of an episode but the first; 1 keeps η constant",
        minimum=1,
        maximum=10,
    )
    judged: int = setting(
        0,
        "1 keeps a single step, too, only if the predicted cost falls and commands stay inside the trust region; 0 "
        "takes it as it is. Several steps, and steps with imagined trajectories, are always judged",
        minimum=0,
        maximum=1,
    )
    retries: int = setting(
        0, "how often an episode's steps may be shortened and judged again, beyond the number of steps", minimum=0
    )
    backtrack: Number = setting(
        0.4, "a step that the prediction does not confirm is shortened to this share", above=0, below=1
    )
    length_factor: Number = setting(
        0.0,
        "a judged step may change the policy by at most this many times the usual change per episode; a longer one is "
        "shortened; 0 turns this off",
        minimum=0,
    )
    length_memory: Number = setting(
        0.9, "weight of the past in the usual change per episode, a geometric mean", minimum=0, below=1
    )
    jacobian_stride: int = setting(1, "the preconditioner uses one step of a trajectory in this many", minimum=1)
    cg_iterations: int = setting(30, "iterations of conjugate gradients per policy step, at most", minimum=1)
    cg_tolerance: Number = setting(1e-2, "relative residual at which conjugate gradients stop", above=0)


@dataclass(frozen=True)
class ModelSettings(Group):
    """The dynamics model and how it learns."""

    name: ClassVar[str] = "model"

    steps: int = setting(300, "Adam steps on the one-step loss per episode", minimum=0)
    rate: Number = setting(1e-3, "Adam's step size at the first of them", above=0)
    rate_end: Number = setting(
        1.0,
        "share of it that is left at the last, after a fall along a cosine; 1 keeps it constant",
        above=0,
        maximum=1,
    )
    batch: int = setting(
        256, "transitions per Adam step at first; the batch grows with the buffer in multiples of this", minimum=1
    )
    batch_share: Number = setting(0.02, "the batch grows to this share of the buffer", minimum=0, maximum=1)
    max_batch: int = setting(512, "the batch grows to at most this", minimum=1, at_least="batch")
    hidden: tuple[int, ...] = setting((128, 128), "units in each hidden layer", minimum=1)
    min_change_scale: Number = setting(
        0.02, "a channel that hardly moves is scaled by at least this share of its declared change", above=0, maximum=1
    )
    horizon: int = setting(
        1, "steps of a roll-out that the model is trained on; 1 trains one-step predictions only", minimum=1
    )
    windows: int = setting(32, "roll-outs per Adam step", minimum=1)
    huber: Number = setting(
        3.0, "errors beyond this many robust standard deviations count linearly, not squared", above=0
    )
    noise_share: Number = setting(
        0.1,
        "where one-step predictions miss this share of the changes' variance, the model is trained on roll-outs alone; "
        "below it, one-step predictions count besides, and below a third of it, up to `model.rollout_share`",
        above=0,
        maximum=1,
    )
    rollout_share: Number = setting(
        0.1,
        "roll-outs weigh at least this much, also where nothing is noise: one-step predictions leave open what a model "
        "makes of its own errors",
        minimum=0,
        maximum=1,
    )
    rescalings: int = setting(3, "how often per episode the sizes of errors are estimated", minimum=1)
    scale_samples: int = setting(2048, "transitions that they are estimated from", minimum=1)
    log_rounds: int = setting(10, "episodes' worth of Adam steps on logs before the first episode, at most", minimum=1)
    log_episodes: int = setting(
        10, "episodes' worth of transitions of logs that stay in the buffer, at most", minimum=0
    )


@dataclass(frozen=True)
class ObserverSettings(Group):
    """The learned observer: an estimate of the state in place of the plain register of measurements."""

    name: ClassVar[str] = "observer"

    use: int = setting(
        0,
        "0: never; 1: where it predicts new episodes better than the register; 2: always",
        minimum=0,
        maximum=2,
    )
    closed: int = setting(6, "corrected steps of a training window, before `model.horizon` free ones", minimum=1)
    windows: int = setting(24, "windows per Adam step", minimum=1)
    clip: Number = setting(4.0, "innovations count up to this many times their usual size", above=0)
    restart_after: int = setting(
        5,
        "clipped innovations in a row to the same side, after which an entry restarts from the measurement",
        minimum=1,
    )
    advantage: Number = setting(
        0.98,
        "it is used once its errors over a horizon are below this share of the register's, and until theirs are below "
        "this share of its own",
        above=0,
        maximum=1,
    )
    slip_share: Number = setting(
        0.003,
        "it is compared with the register where the integral of measured velocities misses this share of the "
        "positions' changes, in variance, or one-step predictions miss `model.noise_share`",
        above=0,
        maximum=1,
    )
    memory: Number = setting(0.7, "weight of earlier episodes in that comparison", minimum=0, below=1)
    trials: int = setting(6, "first episodes, in which the one that is not in use is trained well too", minimum=1)
    trial_share: Number = setting(0.6, "share of `model.steps` for it meanwhile", above=0, maximum=1)
    rival_share: Number = setting(0.1, "share of `model.steps` for it afterwards", minimum=0, maximum=1)


@dataclass(frozen=True)
class ImaginationSettings(Group):
    """Trajectories of the model with fresh references."""

    name: ClassVar[str] = "imagination"

    trajectories: int = setting(0, "imagined trajectories that join the measured ones in each policy step", minimum=0)
    disturbances: int = setting(
        0,
        "1 gives imagined trajectories the measured model errors of this episode, shifted in time, as far as they are "
        "noise: see `model.noise_share`",
        minimum=0,
        maximum=1,
    )
    command_noise: Number = setting(
        0.0,
        "largest amplitude of smooth random offsets on the commands of imagined trajectories, of half the range, until "
        "refinement begins: they find what lies beyond a dead band",
        minimum=0,
        maximum=2,
    )
    dead_band_factor: Number = setting(
        2.0, "they are up to this many times as large where small changes of a command do little", minimum=1, maximum=10
    )
    corners: float = setting(
        0.0,
        "this share of the imagined references turns or stops suddenly, at up to full speed, as those at work may; it "
        "falls to none where what the model misses is noise",
        minimum=0,
        maximum=1,
    )
    practice_episodes: int = setting(
        10, "episodes in which a random policy practises on a model learned from logs", minimum=0
    )


@dataclass(frozen=True)
class RefinementSettings(Group):
    """Gauss–Newton steps, in place of the others once predictions have come true for a while."""

    name: ClassVar[str] = "refinement"

    steps: int = setting(0, "Gauss–Newton steps per episode; 0 turns refinement off", minimum=0)
    batch: int = setting(25, "imagined trajectories of each of them, with fresh references", minimum=1)
    iterations: int = setting(10, "iterations of conjugate gradients per Gauss–Newton step, at most", minimum=1)
    damping: Number = setting(1e-3, "λ, the smallest damping, in units of the preconditioner's α and ε", above=0)
    damping_decrease: Number = setting(0.5, "factor on λ after an accepted step", above=0, maximum=1)
    damping_increase: Number = setting(4.0, "factor on λ after a rejected step", minimum=1, maximum=1000)
    damping_range: Number = setting(1e4, "λ is at most this many times its smallest value", minimum=1, maximum=1e12)
    memory: Number = setting(0.95, "share of the last solution with which the next solve begins", minimum=0, below=1)
    limit_power: int = setting(16, "power of the joint-limit term that refinement minimises", minimum=1)
    newest_share: Number = setting(
        1.0,
        "share of the newest steps in the policy that runs, a running mean of them; 1 for the newest alone",
        above=0,
        maximum=1,
    )
    lag: Number = setting(
        0.0,
        "commands of its imagined trajectories pass a first-order lag of up to this (the share of the command before), "
        "down to a lead of half as much: a loop that bears both has a phase margin",
        minimum=0,
        below=1,
    )
    min_radius_share: Number = setting(
        0.4,
        "refinement goes on while the trust region is at least this share of its maximum: through one halving",
        minimum=0,
        maximum=1,
    )
    max_cost: Number = setting(0.05, "refinement is due once the measured cost has fallen to this …", above=0)
    progress: Number = setting(
        0.05, "… or to this share of the largest so far: steps on a bad policy are not refined", above=0, maximum=1
    )
    max_overfit: Number = setting(
        2.0,
        "and while a new episode's prediction error is at most this many times the error after learning from it, or "
        "below `model.noise_share`",
        minimum=1,
    )
    mean_share: Number = setting(
        0.3,
        "a few failed trajectories are not a surprise unless the plain mean cost times this is one",
        minimum=0,
        maximum=1,
    )


@dataclass(frozen=True)
class ExcitationSettings(Group):
    """Smooth random commands in the first episodes: the model must see motion."""

    name: ClassVar[str] = "excitation"

    amplitude: Number = setting(0.5, "amplitude of the random commands, of half the range; 0 turns them off", minimum=0)
    episodes: int = setting(1, "how many first episodes have them", minimum=0)
    time_constant_s: Number = setting(0.5, "how fast they change, in seconds", above=0)
    log_share: Number = setting(
        0.0,
        "share of the amplitude where the model has learned from logs or another run; a log of a controller alone "
        "cannot tell what a command does from what the controller answers to",
        minimum=0,
        maximum=1,
    )


@dataclass(frozen=True)
class TrustRegionSettings(Group):
    """How far an episode's policy steps may change the commands."""

    name: ClassVar[str] = "trust_region"

    radius: Number = setting(0.1, "first radius: root mean square change of the commands, of half the range", above=0)
    max_radius: Number = setting(
        0.5, "the radius grows to at most this while predictions come true", above=0, at_least="radius"
    )
    min_share: Number = setting(0.3, "it shrinks to at least this share of the first radius", above=0, maximum=1)
    growth: Number = setting(1.5, "factor on the radius when a prediction came true", minimum=1, maximum=10)
    shrink: Number = setting(0.5, "factor on the radius when it did not", above=0, maximum=1)
    growth_surprise: Number = setting(
        1.5, "the radius grows when the measured cost is below this many times the predicted one", above=0
    )
    shrink_surprise: Number = setting(
        3.0, "it shrinks when the measured cost is above this many times it", above=0, at_least="growth_surprise"
    )


@dataclass(frozen=True)
class RollbackSettings(Group):
    """Going back to the last proven policy after an episode that was much worse than usual."""

    name: ClassVar[str] = "rollback"

    factor: Number = setting(
        0.0,
        "an episode that costs more than this many times the usual brings the last proven policy back; 0 turns this "
        "off",
        minimum=0,
    )
    proof: Number = setting(1.0, "an episode that costs at most this many times the usual proves its policy", above=0)
    memory: Number = setting(
        0.8, "weight of the past in the usual cost, a geometric mean over episodes", minimum=0, below=1
    )
    outlier: Number = setting(
        3.0, "a trajectory counts at most this many times the median one in an episode's cost here", minimum=1
    )


@dataclass(frozen=True)
class Settings:
    """Everything that Algorithm 1 leaves open. docs/algorithm.md says where we differ from the paper.

    With one value of each setting, all are Python numbers and compiled in. `with_changes` also takes arrays for
    numbers with a decimal point: then one compiled program serves all their entries, under `jax.vmap`.
    """

    policy_step: PolicyStepSettings = PolicyStepSettings()
    """The gradient and the preconditioned policy step."""
    model: ModelSettings = ModelSettings()
    """The dynamics model and how it learns."""
    observer: ObserverSettings = ObserverSettings()
    """The learned observer."""
    imagination: ImaginationSettings = ImaginationSettings()
    """Trajectories of the model with fresh references."""
    refinement: RefinementSettings = RefinementSettings()
    """Gauss–Newton steps late in a run."""
    excitation: ExcitationSettings = ExcitationSettings()
    """Random commands in the first episodes."""
    trust_region: TrustRegionSettings = TrustRegionSettings()
    """How far an episode's policy steps may change the commands."""
    rollback: RollbackSettings = RollbackSettings()
    """The way back to a proven policy."""

    def __post_init__(self) -> None:
        for name in ("policy_step.length_factor", "rollback.factor"):
            value = getattr(getattr(self, name.partition(".")[0]), name.partition(".")[2])
            if not self.judges and _is_plain(value) and value > 0:
                raise UserError(f"{name} is {value}, but needs judged steps: policy_step.judged 1, or {name} 0.")
        if self.refines and self.refinement.steps * self.refinement.batch > LARGEST_COUNT:
            raise UserError(
                f"refinement.steps is {self.refinement.steps} and refinement.batch {self.refinement.batch}, but their "
                f"product must be at most {LARGEST_COUNT}."
            )

    @property
    def judges(self) -> bool:
        """Whether a policy step is kept only if the prediction confirms it."""
        return bool(self.policy_step.judged) or self.policy_step.steps > 1 or self.imagination.trajectories > 0

    @property
    def refines(self) -> bool:
        """Whether the policy is ever refined; without imagined trajectories it is not."""
        return self.refinement.steps > 0 and self.imagination.trajectories > 0

    @cached_property
    def imagined_trajectories(self) -> int:
        """How many imagined trajectories an episode's update may need."""
        few = self.imagination.trajectories
        # One batch more than there are steps: that on which their outcome is judged.
        return max(few, (self.refinement.steps + 1) * self.refinement.batch) if self.refines else few

    def with_changes(self, changes: Mapping[str, Any]) -> "Settings":
        """The same settings with some of them changed: `settings.with_changes({"model.steps": 10})`."""
        changed: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            check_name(name)
            group, _, field = name.partition(".")
            changed.setdefault(group, {})[field] = value
        groups = {group: dataclasses.replace(getattr(self, group), **values) for group, values in changed.items()}
        return dataclasses.replace(self, **groups)

    def flat(self) -> dict[str, Any]:
        """Every setting by its full name, `model.steps` for example."""
        return {name: getattr(getattr(self, group), field.name) for name, group, field in all_settings()}

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Plain data for config.json: a dictionary per group."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Settings":
        """The settings that `as_dict` gave; `UserError` where one is unknown or out of bounds.

        One that is missing, because the version that wrote them did not have it, has its default. Such a run can be
        read; it is not resumed, because what it would go on with is not what it was started with.
        """
        if not isinstance(data, Mapping):
            raise UserError(f"settings is {data!r}, but must be groups of settings.")
        flat: dict[str, Any] = {}
        for group, values in data.items():
            if not isinstance(values, Mapping):
                raise UserError(f"settings.{group} is {values!r}, but must be a group of settings.")
            flat |= {f"{group}.{field}": value for field, value in values.items()}
        for name in flat:
            check_name(name)
        return Settings().with_changes(flat)


GROUPS: dict[str, type[Group]] = {
    group.name: group
    for group in (
        PolicyStepSettings,
        ModelSettings,
        ObserverSettings,
        ImaginationSettings,
        RefinementSettings,
        ExcitationSettings,
        TrustRegionSettings,
        RollbackSettings,
    )
}
"""The groups by name, in order."""


def all_settings() -> Iterator[tuple[str, str, "dataclasses.Field[Any]"]]:
    """The full name, the group's name and the field of every setting, in order."""
    for name, group in GROUPS.items():
        for field in dataclasses.fields(group):
            yield f"{name}.{field.name}", name, field


def check_name(name: str) -> None:
    """Raise `UserError` unless there is a setting of this full name; suggest the right group or the nearest name."""
    known = [full for full, _, _ in all_settings()]
    if name in known:
        return
    group, _, field = name.rpartition(".")
    siblings = [full for full in known if full.partition(".")[0] == group]
    same_field = [full for full in known if full.partition(".")[2] == field]
    in_group = get_close_matches(field, [full.partition(".")[2] for full in siblings], n=1, cutoff=0.7)
    near = same_field or [f"{group}.{close}" for close in in_group]
    near = near or ([] if siblings else get_close_matches(name, known, n=1, cutoff=0.75))
    if near:
        hint = f" (did you mean {' or '.join(near)}?)."
    elif siblings:
        hint = f"; {group} has {', '.join(full.partition('.')[2] for full in siblings)}."
    else:
        hint = f"; the groups are {', '.join(GROUPS)}."
    raise UserError(f"there is no setting {name}{hint}")


def option_name(name: str) -> str:
    """The command line's option for a setting: `--policy-step.eta` for `policy_step.eta`."""
    return f"--{name.replace('_', '-')}"


def option_words(settings: Settings, base: Settings) -> list[str]:
    """The options that turn the preset `base` into `settings`."""
    before, words = base.flat(), []
    for name, value in settings.flat().items():
        if value != before[name]:
            words += [option_name(name), *map(str, value if isinstance(value, tuple) else (value,))]
    return words
