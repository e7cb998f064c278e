"""Figures that several experiments share: mean and spread over seeds on log axes, in the paper's form."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from firsthand.report.style import INK, PALETTE, episode_axis, log_scale, styled

from .curves import Curves


def band(axes: Axes, curves: Curves, color: str, label: str) -> list[np.ndarray]:
    """Mean and one standard deviation over seeds, both on a log scale; returns what the axis must show."""
    low, high = curves.log_band()
    mean = curves.log_mean()
    axes.fill_between(curves.episodes, low, high, color=color, alpha=0.2, linewidth=0)
    axes.plot(curves.episodes, mean, color=color, label=label)
    return [low, mean, high]


@styled
def two_losses(
    rows: Sequence[tuple[str, Sequence[tuple[str, Curves]]]],
    *,
    log_time: bool = False,
    at: Sequence[tuple[int, str]] = (),
) -> tuple[Figure, list[Axes]]:
    """One panel per quantity, one band per variant. `at` marks episodes by a dashed line with a word."""
    figure = Figure(figsize=(6.6, 2.9 * len(rows) + 0.4), layout="constrained")
    panels = list(np.atleast_1d(figure.subplots(len(rows), 1, sharex=True)))
    for axes, (label, variants) in zip(panels, rows, strict=True):
        shown: list[np.ndarray | float] = []
        for i, (name, curves) in enumerate(variants):
            shown += band(axes, curves, PALETTE[i], name)
        axes.set_ylabel(label)
        log_scale(axes, shown)
        episodes = np.concatenate([curves.episodes for _, curves in variants])
        if log_time:
            axes.set_xscale("log")
            axes.set_xlim(0.9, 1.1 * episodes.max())
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        else:
            episode_axis(axes, episodes)
        for episode, word in at:
            axes.axvline(episode, color=INK, linestyle="--", linewidth=1.6)
            if axes is panels[0]:
                axes.annotate(
                    word, (episode, 0.97), xycoords=("data", "axes fraction"), xytext=(4, 0),
                    textcoords="offset points", va="top", fontsize=9,
                )  # fmt: skip
    panels[-1].set_xlabel("episode")
    if len(rows[0][1]) > 1:
        panels[0].legend(loc="best")
    return figure, panels
