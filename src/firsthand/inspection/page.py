"""The content of an inspection's HTML page; its layout is in `report/templates/inspection.html`."""

from collections.abc import Mapping
from typing import Any

from ..report.html import Section, image, render_page
from .inspection import Inspection
from .summary import STOPPING_NOTE, STRENGTH, TIMES, comparison, digits, strength, times

CAPTIONS = {
    "responses": (
        "How each channel responds",
        "Mean response to the largest push that was repeated (+ minus −, halved). Yellow: dead time. Dotted: 63 % of "
        "the final value. Dashed: from there on within 5 % of it.",
    ),
    "gains": (
        "What each command leads to",
        "The long-run response for each command that was tried, with drift taken away; bars are two standard errors. "
        "Yellow: dead band; the dotted line is the smallest push with a response.",
    ),
    "coupling": (
        "Which command moves what",
        "Change of each quantity after a push of each channel, relative to the strongest in its row. White: none that "
        "can be told from noise.",
    ),
}


def render(inspection: Inspection, images: Mapping[str, bytes]) -> str:
    """The whole page. `images` are the figures as SVG, by name."""
    settings = inspection.settings
    facts = (
        f"{inspection.robot_time_s / 60:.1f} min of robot time",
        f"{len(inspection.recording.pushes)} pushes",
        f"up to {settings.amplitude:g} of half the command range",
        f"control period {inspection.spec.period_s:g} s",
        f"seed {settings.seed}",
    )
    tables = ((TIMES, times(inspection)), (STRENGTH, strength(inspection)))
    return render_page(
        "inspection.html",
        f"Inspection of {inspection.robot}",
        facts=facts,
        notes=inspection.findings.notes,
        tables=[([heading.replace("\n", " ") for heading in head], rows) for head, rows in tables],
        explanation=EXPLANATION,
        sections=[
            Section(title, (image(images, name, title, caption, scroll=True),))
            for name, (title, caption) in CAPTIONS.items()
        ],
        noise=_noise(inspection),
        proposal=_proposal(inspection),
    )


EXPLANATION = (
    "Dead time: whole control periods in which a command does not show in any measurement; the true dead time is "
    "at most one period more, and less where the response begins weakly. Other times count from the command, too. "
    "− and + are the two directions of the command. “Pushed to” is a share of half the command range. Gains are in "
    "the unit of the response per unit of command, from the edge of the dead band."
)


def _noise(inspection: Inspection) -> dict[str, Any]:
    found = inspection.findings
    what = (
        "Standard deviation at rest" if found.stands_still else "What cannot be foreseen one period ahead (std. dev.)"
    )
    rows = [
        (name, digits(noise), digits(drift))
        for name, noise, drift in zip(inspection.spec.layout.measured, found.noise, found.drift, strict=True)
    ]
    return {"head": ("measured", what, "drift per s"), "rows": rows}


def _proposal(inspection: Inspection) -> dict[str, Any] | None:
    if inspection.proposal is None:
        return None
    return {
        "head": ("field", "now", "proposed"),
        "rows": comparison(inspection),
        "reasons": inspection.proposal.reasons.items(),
        "where": (inspection.advice or ("", ""))[0],
        "snippet": (inspection.advice or ("", ""))[1],
        "stopping": None if inspection.stopping is None else str(inspection.stopping),
        "stopping_note": STOPPING_NOTE,
    }
