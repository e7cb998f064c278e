"""The figures from plain data: several runs in one figure, zeros, nulls, and the numbers behind them."""

import tracemalloc
from collections.abc import Sequence

import matplotlib
import numpy as np
import pytest

from firsthand.report.data import History, OutputChannel, PathAxes, PathPanel, TimeSeries, running_mean
from firsthand.report.figures import coordinates, health, learning_curves, path_grid
from firsthand.report.style import plain_number, save, styled


def history(label: str, errors: Sequence[float | None]) -> History:
    rows = [
        {"episode": k, "robot_time_s": 50.0 * k, "tracking_error": e, "controller_loss": e, "step_norm": 0.0}
        for k, e in enumerate(errors, start=1)
    ]
    return History.of(label, rows)


def test_a_matplotlibrc_in_the_working_folder_does_not_count():
    """It may have come with a stranger's run, and LaTeX is a program."""
    with matplotlib.rc_context({"text.usetex": True, "animation.ffmpeg_path": "./ffmpeg", "font.size": 3.0}):
        found = styled(lambda: dict(matplotlib.rcParams))()
    assert not found["text.usetex"]
    assert found["animation.ffmpeg_path"] == "ffmpeg"


def test_running_mean_leaves_out_what_is_not_finite():
    values = np.asarray([4.0, 2.0, np.nan, 6.0, np.inf])
    np.testing.assert_allclose(running_mean(values, window=2), [4.0, 3.0, 2.0, 6.0, 6.0])
    assert np.isnan(running_mean(np.asarray([np.nan]))).all()


def test_history_knows_missing_fields_and_counts_the_last_episodes():
    run = history("a", [1.0, None, 3.0])
    np.testing.assert_array_equal(run.column("tracking_error"), [1.0, np.nan, 3.0])
    assert np.isnan(run.column("radius")).all()
    assert [history("a", [1.0] * n).num_recent for n in (1, 8, 40, 400)] == [1, 2, 10, 10]
    assert history("a", [9.0] * 6 + [2.0, 4.0]).recent_mean("tracking_error") == 3.0


def test_learning_curves_of_several_runs():
    runs = [history("one $x", [1.0] * 40), history("two", [2.0, None, 0.0])]
    figure = learning_curves(runs, oracle_error=0.02)
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["one $x", "two", "oracle: true gradients"]
    png, svg = save(figure)
    assert png.startswith(b"\x89PNG")
    assert b"<svg" in svg


@pytest.mark.parametrize("errors", [[None], [0.0, 1e-30, 1e30]])
def test_log_axes_take_anything(errors):
    save(learning_curves([history("run", errors)]))
    figure = health(history("run", errors), step_bound=1.1, steps_per_episode=10, trust_region=True, cg_tolerance=0.01)
    save(figure)


def test_a_wild_path_does_not_hide_the_reference():
    reference = np.asarray([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    wild = PathPanel("wild", ((reference, 100 * reference),), 70.0)
    lost = PathPanel("lost", ((reference, np.full((3, 2), np.nan)),), float("nan"))
    figure = path_grid([[wild, lost]], PathAxes(("x", "z"), equal=True))
    for axes in figure.axes:
        assert axes.get_xlim()[1] <= 1.6
    # Equal scales: metres per inch agree.
    box, axes = figure.axes[0].get_position(), figure.axes[0]
    width, height = figure.get_size_inches() * (box.width, box.height)
    assert np.diff(axes.get_xlim())[0] / width == pytest.approx(np.diff(axes.get_ylim())[0] / height)
    save(figure)


def test_a_path_that_cannot_be_seen_is_remarked_on():
    circle = np.stack([np.cos(np.linspace(0, 6, 50)), np.sin(np.linspace(0, 6, 50))], axis=1)
    still, far = np.broadcast_to(circle[0], circle.shape), circle + 50.0
    row = [PathPanel(name, ((circle, path),), 1.0) for name, path in (("a", circle), ("b", still), ("c", far))]
    figure = path_grid([row], PathAxes(("x", "z"), equal=True))
    assert [axes.texts[0].get_text() for axes in figure.axes] == ["", "did not move", "outside the picture"]


def test_a_long_reference_is_drawn_once_and_in_little_memory():
    way = np.linspace(0.0, 1.0, 4000)
    there = np.stack([way, np.sin(3 * way)], axis=1)
    back = np.concatenate([there, there[::-1]])
    turn = np.linspace(0.0, 2 * np.pi, 8000)
    circle = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    tracemalloc.start()
    figure = path_grid([[PathPanel("", ((path, path),), 0.0) for path in (back, circle)]], PathAxes(("x", "z"), True))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [np.size(axes.lines[1].get_xdata()) for axes in figure.axes] == [4000, 8000]
    assert peak < 50e6  # all pairs of points are 256 MB


def test_tick_labels_are_plain_numbers():
    shown = [plain_number(v) for v in (0.002, 50.0, 3000.0, 1e-5, 2e6)]
    assert shown == ["0.002", "50", "3000", "10⁻⁵", "2·10⁶"]


def test_every_coordinate_of_an_output_in_space_is_drawn():
    time = np.linspace(0.0, 1.0, 50)
    outputs = tuple(OutputChannel(name, np.sin(time + i), np.cos(time)) for i, name in enumerate("xyz"))
    series = TimeSeries("tour 1", time, np.abs(np.sin(time)), (), (), outputs)
    figure = coordinates(series)
    assert [axes.get_ylabel() for axes in figure.axes] == ["x (m)", "y (m)", "z (m)"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 2, 2]


def test_the_noise_floor_is_drawn_where_it_matters():
    rows = [{"episode": k + 1, "tracking_error": 0.1, "noise_floor": 0.02} for k in range(8)]
    assert "noise floor of the sensors" in _labels(learning_curves([History.of("run", rows)]))
    rows = [{**row, "noise_floor": 1e-6} for row in rows]
    assert "noise floor of the sensors" not in _labels(learning_curves([History.of("run", rows)]))


def _labels(figure) -> list[str]:
    return figure.axes[0].get_legend_handles_labels()[1]
