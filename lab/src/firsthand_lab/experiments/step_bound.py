"""`step-bound`: how long a preconditioned step is, over the size of the gradient (the paper's section 5.2).

For α = 0 the step is ‖Λ⁻¹∇‖ = ‖∇‖/(ε + ‖∇‖²): at most 1/(2√ε), where ‖∇‖ = √ε. The gradients are real ones, of a policy
that learns on the simulated excavator, scaled to every size; the steps of the learning itself are shown with them.
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from firsthand.report.style import INK, PALETTE, log_scale, styled

from .base import Comparison, Cost, Experiment, Finding, Job, Result, Seeds, Size, Verdict
from .theory.curves import log_across

EPSILONS = (0.005, 0.05, 0.5)
"""The paper's, and ten times less and more."""
ALPHAS = (0.0, 0.01)
"""Without the commands' term, as in the paper's argument, and the paper's setting."""
SLACK = 1e-3
"""For rounding, as in `optim.preconditioner`."""
NEAR = 0.01
"""So near to the formula the measured maximum must lie."""


class StepBound(Experiment):
    """The longest step, and where it is."""

    name = "step-bound"
    shows = "the step length over the gradient's norm: at most 1/(2√ε), where the norm is √ε"
    figure = "section 5.2"
    cost = Cost(full_min=4, quick_s=40)
    seeds = Seeds(full=3, quick=1, tiny=1)

    def jobs(self, size: Size) -> list[Job]:
        """One: it learns for a while, then scales gradients."""
        from .theory.setup import settings

        episodes = size.pick(full=40, quick=4, tiny=2)
        parameters = {
            "robot": "excavator",
            "seeds": list(range(size.seeds)),
            **settings(size, "paper-exact"),
            "episodes": episodes,
            "points": size.pick(full=81, quick=41, tiny=5),
            "epsilons": list(EPSILONS),
            "alphas": list(ALPHAS),
        }
        return [
            Job(
                "steps",
                "firsthand_lab.experiments.theory.step_job:measure",
                parameters,
                steps=episodes,
                weight=0.6 * size.seeds,
            )
        ]

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """Measured maxima beside the formula's."""
        swept, learned = results[0].csv("sweep.csv"), results[0].csv("learning.csv")
        settings = results[0].job.parameters["settings"]
        rows = []
        for epsilon in EPSILONS:
            at = (swept["epsilon"] == epsilon) & (swept["alpha"] == 0.0)
            norm, step = swept["gradient_norm"][at], swept["step"][at]
            bound, longest = 1.0 / (2.0 * np.sqrt(epsilon)), int(step.argmax())
            off = float(np.abs(step * (epsilon + norm**2) / norm - 1.0).max())
            near = abs(step[longest] / bound - 1.0) < NEAR and off < NEAR
            rows += [
                Comparison(
                    f"longest step with α = 0, ε = {epsilon:g}",
                    f"{step[longest]:.4f} at ‖∇‖ = {norm[longest]:.4f}",
                    f"{bound:.4f} at {np.sqrt(epsilon):.4f}",
                    _verdict(near),
                ),
                Comparison(f"largest deviation from ‖∇‖/(ε + ‖∇‖²), ε = {epsilon:g}", f"{100 * off:.2f} %", "0 %"),
            ]
        shares = swept["step"] * 2.0 * np.sqrt(swept["epsilon"])
        real = learned["step_norm"] * 2.0 * np.sqrt(settings["policy_step.epsilon"]) / settings["policy_step.eta"]
        rows += [
            Comparison(
                f"longest of {len(shares)} scaled steps, in bounds",
                f"{shares.max():.4f}",
                "1",
                _verdict(bool(shares.max() <= 1.0 + SLACK)),
            ),
            Comparison(
                f"longest of {len(real)} steps of learning, in bounds",
                f"{real.max():.3f}",
                "1",
                _verdict(bool(real.max() <= 1.0 + SLACK)),
            ),
        ]
        passed = all(row.verdict is not Verdict.FAIL for row in rows)
        text = (
            "Gradients of policies that learn on the simulated excavator were scaled to norms over six decades, and "
            "the preconditioned step was taken at each. With α = 0 its length follows ‖∇‖/(ε + ‖∇‖²) and touches "
            f"1/(2√ε) at ‖∇‖ = √ε; with α = {ALPHAS[1]:g} steps are shorter for small gradients, may be longer for "
            "large ones, and keep the same bound. "
            f"The longest of {len(real)} steps of the learning itself was {real.max():.2f} of the bound."
        )
        return Finding(
            _verdict(passed),
            text,
            tuple(rows),
            figures={"step-bound": step_figure(swept, learned, settings)},
            tables={"sweep": swept, "learning": learned},
        )


def _verdict(holds: bool) -> Verdict:
    return Verdict.PASS if holds else Verdict.FAIL


@styled
def step_figure(swept: dict[str, np.ndarray], learned: dict[str, np.ndarray], settings: dict[str, Any]) -> Figure:
    """Step length over gradient norm, measured on the formula's curves, with the bounds."""
    figure = Figure(figsize=(6.8, 4.6), layout="constrained")
    axes = figure.subplots()
    shown: list[np.ndarray | float] = []
    first = swept["seed"] == swept["seed"].min()
    for epsilon, color in zip(EPSILONS, PALETTE, strict=False):
        norm = np.unique(swept["gradient_norm"][swept["epsilon"] == epsilon])
        axes.plot(norm, norm / (epsilon + norm**2), color=color, linewidth=1.2)
        bound = 1.0 / (2.0 * np.sqrt(epsilon))
        axes.plot([norm[0], np.sqrt(epsilon)], [bound] * 2, color=color, linestyle=(0, (4, 2.5)), linewidth=1.0)
        axes.plot(np.sqrt(epsilon), bound, marker="D", color=color, markersize=6, zorder=4)
        for alpha, marker in zip(ALPHAS, ("o", "+"), strict=True):
            at = first & (swept["epsilon"] == epsilon) & (swept["alpha"] == alpha)
            label = f"ε = {epsilon:g}, α = {alpha:g}"
            axes.plot(
                swept["gradient_norm"][at][::2],
                swept["step"][at][::2],
                color=color,
                marker=marker,
                markersize=4,
                linestyle="none",
                label=label,
                markerfacecolor="none" if marker == "o" else color,
            )
            shown.append(swept["step"][at])
    steps = learned["step_norm"] / settings["policy_step.eta"]
    label = f"steps of learning, ε = {settings['policy_step.epsilon']:g}, α = {settings['policy_step.alpha']:g}"
    axes.plot(learned["gradient_norm"], steps, color=INK, marker=".", markersize=4, linestyle="none", label=label)
    log_across(axes)
    log_scale(axes, [*shown, steps])
    axes.set_xlabel("norm of the gradient ‖∇‖")
    axes.set_ylabel("length of the step ‖Λ⁻¹∇‖")
    axes.set_title("Lines: ‖∇‖/(ε + ‖∇‖²); dashed: 1/(2√ε); diamonds: ‖∇‖ = √ε", loc="left")
    figure.legend(loc="outside lower center", ncols=3)
    return figure
