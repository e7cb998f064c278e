"""The HTML page of an inspection: one file with everything in it. All text is escaped here."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..report.html import document, image
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
    title = f"Inspection of {inspection.robot}"
    sections = [_head(inspection, title), _channels(inspection)]
    sections += [_figure(name, images) for name in CAPTIONS]
    sections += [_noise(inspection), _proposal(inspection)]
    return document(title, sections)


def _head(inspection: Inspection, title: str) -> str:
    settings = inspection.settings
    facts = (
        f"{inspection.robot_time_s / 60:.1f} min of robot time",
        f"{len(inspection.recording.pushes)} pushes",
        f"up to {settings.amplitude:g} of half the command range",
        f"control period {inspection.spec.period_s:g} s",
        f"seed {settings.seed}",
    )
    notes = "\n".join(f'<p class="warning">{escape(note)}</p>' for note in inspection.findings.notes)
    return f'<h1>{escape(title)}</h1>\n<p class="facts">{escape(" · ".join(facts))}</p>\n{notes}'


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    top = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _channels(inspection: Inspection) -> str:
    text = (
        "Dead time: whole control periods in which a command does not show in any measurement; the true dead time is "
        "at most one period more, and less where the response begins weakly. Other times count from the command, too. "
        "− and + are the two directions of the command. “Pushed to” is a share of half the command range. Gains are in "
        "the unit of the response per unit of command, from the edge of the dead band."
    )
    tables = [
        _table([heading.replace("\n", " ") for heading in head], rows)
        for head, rows in ((TIMES, times(inspection)), (STRENGTH, strength(inspection)))
    ]
    return f"<h2>Channels</h2>\n{tables[0]}\n{tables[1]}\n<p>{escape(text)}</p>"


def _figure(name: str, images: Mapping[str, bytes]) -> str:
    title, caption = CAPTIONS[name]
    return f"<h2>{escape(title)}</h2>\n{image(images, name, title, caption, scroll=True)}"


def _noise(inspection: Inspection) -> str:
    found = inspection.findings
    what = (
        "Standard deviation at rest" if found.stands_still else "What cannot be foreseen one period ahead (std. dev.)"
    )
    rows = [
        (name, digits(noise), digits(drift))
        for name, noise, drift in zip(inspection.spec.layout.measured, found.noise, found.drift, strict=True)
    ]
    return f"<h2>Noise</h2>\n{_table(('measured', what, 'drift per s'), rows)}"


def _proposal(inspection: Inspection) -> str:
    if inspection.proposal is None:
        return "<h2>Proposed settings</h2>\n<p>None: no channel responds.</p>"
    table = _table(("field", "now", "proposed"), comparison(inspection))
    reasons = "\n".join(
        f"<p><code>{escape(field)}</code>: {escape(why)}</p>" for field, why in inspection.proposal.reasons.items()
    )
    snippet = escape(inspection.proposal.snippet(inspection.spec))
    stops = (
        "" if inspection.stopping is None else f"<p>{STOPPING_NOTE}</p>\n<pre>stopping = {inspection.stopping}</pre>"
    )
    return f"<h2>Proposed settings</h2>\n{table}\n{reasons}\n<pre>{snippet}</pre>\n{stops}"
