"""A moving picture of learning: what the robot did in a few episodes, side by side."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from PIL import Image

from ..drawing import body_points, path_points, plane_of
from ..errors import UserError
from ..evaluation import tracking_metrics
from ..robots import EpisodeRecord
from ..runs import atomic
from ..training.run import Run
from ..units import unit_of
from .data import PathAxes
from .style import ALARM, INK, PALETTE, REFERENCE, styled

PANELS = 4
SECONDS = 10.0
"""Robot time that is shown of each episode."""
FRAMES_PER_SECOND = 12
SPEED = 1.5
"""The picture runs this many times as fast as the robot did."""
DPI = 72


def write_animation(run_folder: Path, out: Path) -> Path:
    """Write a GIF of the first, two middle and the last episode of a run. Reads the run only; returns where it is."""
    if out.suffix.lower() != ".gif":
        raise UserError(f"animation is {out}, but must be a .gif file.")
    run = Run.open(run_folder)
    episodes = choose_episodes(run.episodes())
    if not episodes:
        raise UserError(f"{run_folder} has no episode yet: there is nothing to show.")
    if run.description.spec.num_outputs < 2:
        raise UserError(f"{run_folder} follows one number over time; the animation shows paths in a plane.")
    atomic.write_bytes(out, animate(run, episodes))
    return out


def choose_episodes(recorded: Sequence[int], panels: int = PANELS) -> list[int]:
    """The first, the last, and some between them, evenly spread on a logarithmic axis: most is learned early."""
    if not recorded:
        return []
    wanted = np.geomspace(1, len(recorded), min(panels, len(recorded)))
    return sorted({recorded[round(float(w)) - 1] for w in wanted})


@styled
def animate(run: Run, episodes: Sequence[int]) -> bytes:
    """The GIF of these episodes."""
    robot, unit = run.description, unit_of(run.description.unit)
    spec = robot.spec
    records = {episode: run.record(episode) for episode in episodes}
    shown = {episode: _stretch(record, spec.period_s) for episode, record in records.items()}
    references = {e: plane_of(spec, r[1].astype(np.float64)) for e, r in shown.items()}
    paths = {e: path_points(spec, r[0].astype(np.float64)) for e, r in shown.items()}
    bodies = {e: body_points(spec, r[0].astype(np.float64)) for e, r in shown.items()}
    low, high = _limits([*references.values(), *(b for b in bodies.values() if b is not None)])
    axes_of = PathAxes.of(spec, unit)
    height = 2.6 * float((high - low)[1] / (high - low)[0]) if axes_of.equal else 2.2
    figure = Figure(
        figsize=(2.6 * len(episodes) + 0.3, min(max(height, 1.6), 3.6) + 0.55), dpi=DPI, layout="constrained"
    )
    canvas = FigureCanvasAgg(figure)
    drawn = []
    for axes, episode in zip(np.atleast_1d(figure.subplots(1, len(episodes))), episodes, strict=True):
        error = tracking_metrics(spec, (records[episode],)).mean_error
        axes.set_title(f"episode {episode}: {unit.with_unit(error)}", fontsize=10)
        axes.set_xlim(low[0], high[0])
        axes.set_ylim(low[1], high[1])
        if axes_of.equal:
            axes.set_aspect("equal")
        axes.set_xticks([])
        axes.set_yticks([])
        (body,) = axes.plot([], [], color="#9A9A9A", linewidth=3.0, marker="o", markersize=4)
        (wanted,) = axes.plot([], [], **REFERENCE)
        (done,) = axes.plot([], [], color=PALETTE[0], linewidth=1.8)
        if axes_of.equal and not drawn:
            _scale_bar(axes, low, high, robot.unit)
        goal = axes.add_patch(Circle((0, 0), 0.012 * float((high - low)[0]), color=ALARM))
        drawn.append((episode, body, wanted, done, goal))
    stride = max(round(SPEED / (FRAMES_PER_SECOND * spec.period_s)), 1)
    length = max(len(path) for path in paths.values())
    trail = round(2.0 / spec.period_s)

    def show(frame: int) -> Image.Image:
        now = min(frame * stride, length - 1)
        for episode, body, wanted, done, goal in drawn:
            at = min(now, len(paths[episode]) - 1)
            since = max(0, at - trail)
            reference, path, links = references[episode], paths[episode], bodies[episode]
            wanted.set_data(*reference[since : at + trail // 2].T)
            done.set_data(*path[since : at + 1].T)
            goal.center = tuple(reference[at])
            if links is not None:
                body.set_data(*links[at].T)
        canvas.draw()
        return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("P", palette=Image.Palette.ADAPTIVE)

    first, *others = (show(frame) for frame in range(-(-length // stride)))
    buffer = io.BytesIO()
    first.save(
        buffer, "GIF", save_all=True, append_images=others, duration=1000 // FRAMES_PER_SECOND, loop=0, optimize=True
    )
    return buffer.getvalue()


def _scale_bar(axes: Axes, low: np.ndarray, high: np.ndarray, unit: str) -> None:
    """A length to compare with, in the lower left corner: a power of ten."""
    size = high - low
    length = 10.0 ** np.floor(np.log10(float(size[0]) / 3))
    x, y = low + 0.06 * size
    axes.plot([x, x + length], [y, y], color=INK, linewidth=1.5)
    axes.text(x + length / 2, y + 0.02 * size[1], f"{length:g} {unit}", ha="center", va="bottom", fontsize=8)


def _stretch(record: EpisodeRecord, period_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Measured values and references of the first trajectories, one after the other, for `SECONDS`."""
    steps = record.commands.shape[1]
    count = max(1, min(len(record.commands), round(SECONDS / (steps * period_s))))
    known = record.best_known[:count, :steps].reshape(count * steps, -1)
    return known, record.references[:count, :steps].reshape(count * steps, -1)


def _limits(points: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    everything = np.concatenate([p.reshape(-1, 2) for p in points])
    everything = everything[np.isfinite(everything).all(axis=1)]
    low, high = everything.min(axis=0), everything.max(axis=0)
    margin = 0.05 * (high - low).max()
    return low - margin, high + margin
