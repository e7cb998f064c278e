"""Pieces of HTML that all our pages share. All text is escaped here."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources


def document(title: str, sections: Sequence[str]) -> str:
    """A page with its style inside. `sections` are HTML."""
    css = resources.files("firsthand.report").joinpath("page.css").read_text("utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def image(images: Mapping[str, bytes], name: str, alternative: str, caption: str, *, scroll: bool = False) -> str:
    """A figure. On a phone, one that would become too small to read is scrolled sideways instead."""
    data = base64.b64encode(images[name]).decode("ascii")
    return (
        f'<figure>\n<div class="wide{" scroll" if scroll else ""}">'
        f'<img alt="{escape(alternative)}" src="data:image/svg+xml;base64,{data}"></div>\n'
        f"<figcaption>{escape(caption)}</figcaption>\n</figure>"
    )
