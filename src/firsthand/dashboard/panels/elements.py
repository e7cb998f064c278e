"""Elements that several panels use."""

from typing import Any

from nicegui import ui
from nicegui.elements.echart import EChart


def panel(title: str, *, wide: bool = False) -> ui.element:
    """A card with a title."""
    card = ui.element("div").classes("panel panel-wide" if wide else "panel")
    with card:
        ui.label(title).classes("panel-title")
    return card


def row() -> ui.element:
    """Elements side by side."""
    return ui.element("div").classes("panel-row")


def note(text: str = "") -> ui.label:
    """Small print."""
    return ui.label(text).classes("panel-note")


def empty_chart(css_class: str = "chart") -> EChart:
    """A chart that `show_chart` fills."""
    return ui.echart({"series": [], "grid": [], "xAxis": [], "yAxis": []}).classes(css_class)


def show_chart(chart: EChart, options: dict[str, Any]) -> None:
    """Redraw a chart."""
    chart.options.clear()
    chart.options.update(options)
    chart.update()
