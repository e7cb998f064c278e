"""Figures 7 and 8: the payload is switched every few episodes, and the learner is not told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from firsthand.plants.excavator import PAYLOADS
from firsthand.plants.excavator.lifting import HEAVY_PAYLOADS
from firsthand.report.data import PathAxes, PathPanel
from firsthand.report.figures import path_grid
from firsthand.report.style import PALETTE, episode_axis, log_scale, styled

from . import files
from .base import Comparison, Cost, Experiment, Finding, Job, Result, Seeds, Size, Verdict
from .baseline import HONEST_ROBOT, jobs_of, small
from .curves import Curves, gather
from .learning import Setup, records_from_arrays

FIRST_SWITCH = {"full": 20, "quick": 20, "tiny": 4}
EPISODES = {"full": 180, "quick": 50, "tiny": 16}
COUNTED_FROM = {"full": 100, "quick": 20, "tiny": 4}
"""Switches count from here on: the paper speaks of what it sees after the first 100 episodes."""
RECOVERED = 1.2
"""Recovered is an error of at most this many times the mean of the three episodes before the switch."""
BEFORE = 3
NOTICED = 1.2
"""A heavier load has a visible effect where the first episode with it is worse by more than this."""


class Payload(Experiment):
    """Four payloads, switched every 5 to 10 episodes."""

    name = "payload"
    shows = "learning adapts to payloads that it is not told of"
    figure = "figures 7, 8"
    cost = Cost(full_min=9, quick_s=50)
    seeds = Seeds(full=4, quick=1, tiny=2)

    def jobs(self, size: Size) -> list[Job]:
        """All seeds have the same schedule."""
        robot = HONEST_ROBOT[size.name]
        switches = schedule(EPISODES[size.name], FIRST_SWITCH[size.name], tuple(loads_of(robot).values()))
        shown = example(switches, EPISODES[size.name])
        setup = Setup(robot=robot, episodes=EPISODES[size.name], payloads=switches, records=shown, **small(size))
        return jobs_of(setup, f"{robot}-payloads", size.seeds)

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """How much worse the first episode after a switch is, and how long until it is as good as before."""
        error, loss = gather(results, "tracking_error"), gather(results, "controller_loss")
        model = gather(results, "prediction_error")
        parameters = results[0].job.parameters
        loads = loads_of(parameters["robot"])
        switches = [(int(e), float(kg)) for e, kg in parameters["payloads"]]
        counted = [e for e, _ in switches if COUNTED_FROM[size.name] <= e <= EPISODES[size.name] - 5]
        up = [e for e in counted if is_heavier(switches, e)]
        down = [e for e in counted if e not in up]
        heavier = Response.of(error, loss, up, switches, EPISODES[size.name])
        lighter = Response.of(error, loss, down, switches, EPISODES[size.name])
        verdict = Verdict.of(heavier.factor > NOTICED and heavier.recovery <= 5, size)
        rows = (
            Comparison("a heavier load, first episode: error, factor (median)", f"{heavier.factor:.2f}", "2", verdict),
            Comparison("the same as a loss", f"{heavier.loss:.1f}", "2 to 4"),
            Comparison("episodes until recovered (median)", heavier.longest, "within 5", verdict),
            Comparison("switches recovered from within 5 episodes", f"{100 * heavier.within:.0f} %", "–"),
            Comparison("error five episodes later, factor (median)", f"{heavier.level:.2f}", "similar"),
            Comparison("largest factor of a first episode", f"{heavier.largest:.1f}", "–"),
            Comparison("a lighter load, first episode: error, factor (median)", f"{lighter.factor:.2f}", "–"),
            Comparison("episodes until recovered (median)", lighter.longest, "–"),
        )
        return Finding(
            verdict,
            _text(heavier, lighter, loads, error.values.shape[0], verdict),
            rows,
            figures={
                "payload": _figure(loss, model, switches, loads),
                "payload-paths": _paths(results, error),
            },
            tables={
                "payload": {
                    "episode": loss.episodes,
                    "payload_kg": _payloads(loss.episodes, switches),
                    "controller_loss": loss.log_mean(),
                    "tracking_error": error.log_mean(),
                    "model_error": model.log_mean(),
                }
            },
            numbers={
                "counted": counted,
                **{f"{name}_heavier": value for name, value in heavier.numbers().items()},
                **{f"{name}_lighter": value for name, value in lighter.numbers().items()},
            },
        )


def loads_of(robot: str) -> dict[str, float]:
    """Name to kg: the loads that a robot carries here."""
    return HEAVY_PAYLOADS if robot == "excavator-realistic" else PAYLOADS


def schedule(
    episodes: int, first: int, kilograms: Sequence[float] = tuple(PAYLOADS.values())
) -> tuple[tuple[int, float], ...]:
    """(episode, kg): from episode `first` on, another payload every 5 to 10 episodes; the same in every run."""
    rng = np.random.default_rng(7)
    switches, now = [(1, kilograms[0])], kilograms[0]
    episode = first
    while episode <= episodes:
        now = float(rng.choice([kg for kg in kilograms if kg != now]))
        switches.append((episode, now))
        episode += int(rng.integers(5, 11))
    return tuple(switches)


def example(switches: tuple[tuple[int, float], ...], episodes: int) -> tuple[int, int, int]:
    """Figure 8: the episode before a switch to the largest payload, the switch, and five later; the last such one."""
    wanted = [e for e, kg in switches if e + 5 <= episodes and e > 1]
    largest = [e for e, kg in switches if e in wanted and kg == max(held for _, held in switches)]
    at = (largest or wanted)[-1]
    return at - 1, at, at + 5


def responses(
    error: Curves, loss: Curves, counted: list[int], switches: list[tuple[int, float]], last: int
) -> tuple[np.ndarray, ...]:
    """Per seed and switch: factor in error, in loss, episodes until recovered (∞: not until the next), level at +5."""
    starts = [e for e, _ in switches]
    factors, losses, needed, later = [], [], [], []
    for values, squared in zip(error.values, loss.values, strict=True):
        for at in counted:
            i = at - 1  # episodes count from 1
            before = np.mean(values[i - BEFORE : i])
            end = min((e for e in starts if e > at), default=last + 1) - 1
            good = np.flatnonzero(values[i:end] <= RECOVERED * before)
            factors.append(values[i] / before)
            losses.append(squared[i] / np.mean(squared[i - BEFORE : i]))
            needed.append(good[0] if good.size else np.inf)
            later.append(values[min(i + 5, end - 1)] / before)
    return tuple(np.asarray(v, float) for v in (factors, losses, needed, later))


def is_heavier(switches: list[tuple[int, float]], episode: int) -> bool:
    """Whether the switch in this episode is to a heavier load than before it."""
    at = [e for e, _ in switches].index(episode)
    return at > 0 and switches[at][1] > switches[at - 1][1]


@dataclass(frozen=True)
class Response:
    """What switches of one kind do, as medians over seeds and switches; NaN where there is no such switch."""

    switches: int
    factor: float
    """Error of the first episode after a switch over that of the three before it."""
    loss: float
    recovery: float
    """Episodes until recovered; ∞ where the next switch comes first."""
    within: float
    """Share that has recovered within five."""
    level: float
    """Error five episodes later over that of the three before."""
    largest: float

    @staticmethod
    def of(error: Curves, loss: Curves, counted: list[int], switches: list[tuple[int, float]], last: int) -> "Response":
        """Of the switches in these episodes."""
        if not counted:
            return Response(0, *(float("nan"),) * 6)
        factors, losses, needed, later = responses(error, loss, counted, switches, last)
        return Response(
            switches=len(counted),
            factor=float(np.median(factors)),
            loss=float(np.median(losses)),
            recovery=float(np.median(needed)),
            within=float(np.mean(needed <= 5)),
            level=float(np.median(later)),
            largest=float(np.max(factors)),
        )

    @property
    def longest(self) -> str:
        """The episodes until recovered, for people."""
        return f"{self.recovery:.0f}" if np.isfinite(self.recovery) else "more than until the next switch"

    def numbers(self) -> dict[str, float]:
        """For the finding's file."""
        return {"factor": self.factor, "recovery_episodes": self.recovery, "within_five": self.within}


def _payloads(episodes: np.ndarray, switches: list[tuple[int, float]]) -> np.ndarray:
    starts, kilograms = np.asarray([e for e, _ in switches]), np.asarray([kg for _, kg in switches])
    return kilograms[np.searchsorted(starts, episodes, side="right") - 1]


def _text(heavier: Response, lighter: Response, loads: Mapping[str, float], seeds: int, verdict: Verdict) -> str:
    holds = {
        Verdict.PASS: "The paper's effect is there: an unannounced load shows in the error, and is learned within five "
        "episodes.",
        Verdict.FAIL: "The paper's claim does not show here: "
        + (
            "the learner does not recover within five episodes."
            if heavier.factor > NOTICED
            else f"a heavier load is hardly felt (a factor of {NOTICED:g} was asked for), so there is nothing to "
            "recover from."
        ),
    }.get(verdict, "This size is too small to tell.")
    names = ", ".join(f"{name} {kg:g}" for name, kg in loads.items())
    felt = _describe_switches(heavier, lighter)
    return (
        f"Payloads ({names} kg) were switched every 5 to 10 episodes without a word to the learner ({seeds} "
        f"{'seed' if seeds == 1 else 'seeds'}). {felt} {holds}"
    )


def _describe_switches(heavier: Response, lighter: Response) -> str:
    """What switches of both kinds do, as far as there are any."""
    up = (
        f"Over {heavier.switches} switches to a heavier load the first episode has {heavier.factor:.2f} times the "
        "error of the three before it (median; the paper: it doubles), the error is back within "
        f"{100 * (RECOVERED - 1):.0f} % after {heavier.longest} episodes (median; 0 means that it was never outside), "
        f"{100 * heavier.within:.0f} % of them are recovered from within five, and five episodes later the error is "
        f"{heavier.level:.2f} times what it was."
    )
    down = (
        f"Over {lighter.switches} switches to a lighter load the first episode has "
        f"{lighter.factor:.2f} times the error."
    )
    shown = [text for text, response in ((up, heavier), (down, lighter)) if response.switches]
    return " ".join(shown) or "No switch comes late enough to count."


@styled
def _figure(loss: Curves, model: Curves, switches: list[tuple[int, float]], loads: Mapping[str, float]) -> Figure:
    figure = Figure(figsize=(6.6, 6.0), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    kilograms = _payloads(loss.episodes, switches)
    starts = np.asarray([e for e, _ in switches if e > 1])
    for axes, curves, label in zip(
        panels, (loss, model), ("controller loss (m²)", "model error, newest episode"), strict=True
    ):
        mean, (low, high) = curves.log_mean(), curves.log_band()
        axes.plot(curves.episodes, mean, color="#C8C8C8", linewidth=1.0)
        for i, (name, kg) in enumerate(loads.items()):
            held = kilograms == kg
            axes.fill_between(curves.episodes, low, high, where=held, color=PALETTE[i], alpha=0.18, linewidth=0)
            shown = np.where(held, mean, np.nan)
            axes.plot(curves.episodes, shown, color=PALETTE[i], linewidth=1.9, label=f"{name}, {kg:g} kg")
            first = np.isin(curves.episodes, starts) & held
            axes.plot(curves.episodes[first], mean[first], "o", color=PALETTE[i], markersize=5.5)
        axes.set_ylabel(label)
        log_scale(axes, [low, high])
        episode_axis(axes, curves.episodes)
    panels[0].legend(ncols=2, loc="upper right", title="dots: first episode after a switch", title_fontsize=9)
    panels[1].set_xlabel("episode")
    return figure


def _paths(results: list[Result], error: Curves) -> Figure:
    """The trajectories before, at and after one switch, of the first seed."""
    from firsthand.robots.registry import make_task

    result = results[0]
    spec = make_task("excavator").spec
    panels = []
    for episode, now in zip(result.job.parameters["records"], ("", "now ", ""), strict=True):
        arrays, _ = files.read_arrays(result.folder / "records" / f"{episode:06d}.safetensors")
        record = records_from_arrays(arrays, 1)[0]
        kg = float(_payloads(np.asarray([episode]), [tuple(s) for s in result.job.parameters["payloads"]])[0])
        panels.append(PathPanel.of(f"episode {episode}, {now}{kg:g} kg", spec, record))
    return path_grid([panels], PathAxes.of(spec))
