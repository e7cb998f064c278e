"""Our HTML pages: templates of Jinja2, which escapes every value. One file each, nothing loaded from elsewhere."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup


@dataclass(frozen=True)
class Picture:
    """A figure of a page."""

    source: str
    """The picture itself, as a data address."""
    alternative: str
    """What it shows, in words."""
    caption: str
    """Below it."""
    scroll: bool = False
    """On a phone, one that would become too small to read is scrolled sideways instead."""


@dataclass(frozen=True)
class Section:
    """A heading, a paragraph and pictures."""

    heading: str
    """Its title."""
    pictures: tuple[Picture, ...]
    """In order."""
    text: str = ""
    """Before them; may be empty."""


def image(images: Mapping[str, bytes], name: str, alternative: str, caption: str, *, scroll: bool = False) -> Picture:
    """A figure that lies inside the page."""
    data = base64.b64encode(images[name]).decode("ascii")
    return Picture(f"data:image/svg+xml;base64,{data}", alternative, caption, scroll)


def render_page(template: str, title: str, **values: Any) -> str:
    """A page from a template of `report/templates`, with its style inside. All values are escaped."""
    css = Markup(_folder().joinpath("page.css").read_text("utf-8"))  # our own file
    return _environment().get_template(template).render(title=title, css=css, **values)


def _folder() -> Any:
    return resources.files("firsthand.report")


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(str(_folder().joinpath("templates"))),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
