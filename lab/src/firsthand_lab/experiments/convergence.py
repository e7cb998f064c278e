"""Figure 3: model and controller loss over 400 episodes, and the power law of the decreasing segment."""

import numpy as np
from matplotlib.figure import Figure

from firsthand.report.style import INK, styled

from . import throughput
from .base import Comparison, Cost, Experiment, Finding, Job, Result, Seeds, Size, Verdict
from .baseline import EPISODES, baseline
from .curves import Curves, PowerLaw, Slope, gather, power_law, slope_between
from .drawing import two_losses

PAPER_LOSS = {50: 3e-2, 100: 6e-3, 200: 3e-3, 400: 2e-3}
"""Controller loss read off figure 3, m²."""
NEAR = (3.0, 5.0)
"""Exponents that count as "about four"."""
PAPER_SEGMENT = (10, 200)
"""Episodes between which the paper's law holds: the claim is judged there."""


class Convergence(Experiment):
    """The paper's algorithm on the simulated excavator."""

    name = "convergence"
    shows = "model and controller loss fall like a power law"
    figure = "figure 3"
    cost = Cost(full_min=22, quick_s=80)
    seeds = Seeds(full=4, quick=2, tiny=2)

    def jobs(self, size: Size) -> list[Job]:
        """The plain run, and how fast it goes."""
        return [*baseline(size), throughput.job(size)]

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """Fit, compare, draw."""
        runs, speed = results[:-1], results[-1].csv(throughput.FILE)
        loss, model = gather(runs, "controller_loss"), gather(runs, "prediction_error")
        law, model_law = power_law(loss), power_law(model)
        there = slope_between(loss, *PAPER_SEGMENT)
        per_core = speed["episodes"] / speed["core_seconds"]
        rows = [
            judge_exponent(there, size),
            Comparison("exponent of the steepest segment found", resampled(law), "about 4"),
            Comparison("burn-in ends at episode", str(law.burn_in), "10"),
            Comparison("plateau begins at episode", str(law.plateau), "200"),
            *(_loss_row(loss, episode) for episode in PAPER_LOSS if episode <= EPISODES[size.name]),
            Comparison("exponent of the model's error on new episodes", resampled(model_law), "–"),
            *(
                Comparison(f"episodes per core-second, {count:.0f} seed(s) side by side", f"{value:.2f}", "–")
                for count, value in zip(speed["seeds"], per_core, strict=True)
            ),
        ]
        verdict = rows[0].verdict or Verdict.NOT_COMPARABLE
        return Finding(
            verdict,
            _text(loss, law, there, verdict, size),
            tuple(rows),
            figures={"convergence": _figure(loss, model, law)},
            tables={
                "convergence": {
                    "episode": loss.episodes,
                    "controller_loss": loss.log_mean(),
                    "controller_loss_low": loss.log_band()[0],
                    "controller_loss_high": loss.log_band()[1],
                    "model_error": model.log_mean(),
                    "model_error_low": model.log_band()[0],
                    "model_error_high": model.log_band()[1],
                }
            },
            numbers={
                "exponent_10_to_200": [there.exponent, there.low, there.high],
                "exponent": law.exponent,
                "exponent_resampled": [law.low, law.high],
                "exponents_of_seeds": [power_law(Curves(loss.episodes, one[None])).exponent for one in loss.values],
                "burn_in": law.burn_in,
                "plateau": law.plateau,
                "explained": law.explained,
                "loss_at_end": loss.around(int(loss.episodes[-1])),
                "episodes_per_core_second": {str(int(n)): v for n, v in zip(speed["seeds"], per_core, strict=True)},
            },
        )


def interval(law: Slope) -> str:
    """An exponent with its 95 % interval over seeds, where there are enough of them."""
    if not np.isfinite(law.exponent):
        return "none found"
    ends = f"95 %: {law.low:.1f} to {law.high:.1f}" if np.isfinite(law.low) else "too few seeds for an interval"
    return f"{law.exponent:.1f} ({ends})"


def resampled(law: PowerLaw) -> str:
    """An exponent with what resampled sets of seeds give."""
    if not np.isfinite(law.exponent):
        return "none found"
    return f"{law.exponent:.1f} (resampled seeds: {law.low:.1f} to {law.high:.1f})"


def judge_exponent(there: Slope, size: Size) -> Comparison:
    """The row of the paper's law, with its verdict."""
    if size.name != "full" or not np.isfinite(there.low):
        verdict = Verdict.NOT_COMPARABLE  # a shorter run does not reach episode 200, and few seeds have no interval
    else:
        verdict = Verdict.PASS if there.low <= NEAR[1] and there.high >= NEAR[0] else Verdict.FAIL
    first, last = PAPER_SEGMENT
    quantity = f"exponent of the controller loss, ℓ ∝ t^−k, episodes {first} to {last}"
    return Comparison(quantity, interval(there), "about 4", verdict)


def _loss_row(loss: Curves, episode: int) -> Comparison:
    ours, paper = loss.around(episode), PAPER_LOSS[episode]
    verdict = Verdict.PASS if ours <= 1.5 * paper else Verdict.FAIL
    quantity = f"controller loss at episode {episode} (m²; in brackets its root)"
    return Comparison(quantity, f"{ours:.1e} ({100 * ours**0.5:.1f} cm)", f"{paper:.0e}", verdict)


def _text(loss: Curves, law: PowerLaw, there: Slope, verdict: Verdict, size: Size) -> str:
    seeds, last = loss.values.shape[0], int(loss.episodes[-1])
    begin = (
        f"{seeds} seeds of the paper's algorithm ran {last} episodes on the simulated excavator; mean and "
        "spread are taken "
        "on a log scale. "
    )
    if np.isfinite(there.exponent):
        first, end = PAPER_SEGMENT
        begin += (
            f"Between episodes {first} and {end}, where the paper's law holds, the loss falls like t^−k with k = "
            f"{interval(there)}. "
        )
    begin += "A line of three pieces on log axes, its corners free, "
    if not np.isfinite(law.exponent):
        return begin + "found no segment that falls more steeply than what is before and after it."
    found = (
        f"finds burn-in until episode {law.burn_in}, then a fall like t^−{law.exponent:.1f} (resampled seeds: "
        f"{law.low:.1f} to {law.high:.1f}) until episode {law.plateau}, then a plateau that ends at "
        f"{loss.around(last):.1e} m². "
    )
    if verdict is Verdict.PASS:
        beside_the_paper = "The paper's t^−4 between episodes 10 and 200 is there. "
    elif verdict is Verdict.FAIL:
        beside_the_paper = (
            "The paper's t^−4 between episodes 10 and 200 is not there. Part of the difference lies in where time "
            "starts: our first episode is excited and learning sets in at once, while the paper's policy does not "
            "improve for 10 to 20 episodes, and the same fall is steeper on a log axis the later it begins. "
        )
    else:
        beside_the_paper = ""
    short = "" if size.name == "full" else f"With {last} instead of 400 episodes this is a look, not a measurement."
    return (begin + found + beside_the_paper + short).rstrip()


@styled
def _figure(loss: Curves, model: Curves, law: PowerLaw) -> Figure:
    figure, panels = two_losses(
        [("controller loss (m²)", [("mean of seeds", loss)]), ("model error, newest episode", [("", model)])],
        log_time=True,
    )
    if np.isfinite(law.exponent):
        time = np.linspace(law.burn_in, law.plateau, 50)
        label = f"fit: t^−{law.exponent:.1f}, episodes {law.burn_in} to {law.plateau}"
        panels[0].plot(time, law.prefactor * time**-law.exponent, color=INK, linestyle="--", linewidth=1.6, label=label)
    paper = [e for e in PAPER_LOSS if e <= loss.episodes[-1]]
    if paper:
        panels[0].plot(
            paper, [PAPER_LOSS[e] for e in paper], "s", color=INK, markerfacecolor="white", label="paper, read off"
        )
        low, high = panels[0].get_ylim()
        panels[0].set_ylim(min(low, 1e-3), max(high, 5e-2))
    panels[0].legend(loc="lower left")
    return figure
