"""XML files of robots (URDF, MJCF), read without trusting them.

Only elements and attributes are read. There is no document type, so no entities; no files are included or downloaded.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NoReturn
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from .spec_checks import SpecError

MAX_BYTES = 20_000_000
MAX_ELEMENTS = 200_000
MAX_DEPTH = 200


class RobotFile:
    """One XML file, with sentences that name it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.root = self._read()

    @property
    def name(self) -> str:
        """What the file is called in messages."""
        return self.path.name

    def fail(self, what: str) -> NoReturn:
        """Raise `SpecError`: the file, and what is wrong with it."""
        raise SpecError(f"{self.path}: {what}")

    def numbers(self, element: Element, attribute: str, default: tuple[float, ...], of: str) -> tuple[float, ...]:
        """As many finite numbers as `default` has, which stands for a missing attribute."""
        text = element.get(attribute)
        if text is None:
            return default
        try:
            values = tuple(float(part) for part in text.split())
        except ValueError:
            values = ()
        if len(values) != len(default) or not all(math.isfinite(value) for value in values):
            wanted = "a finite number" if len(default) == 1 else f"{len(default)} finite numbers"
            self.fail(f"{attribute} of {of} is {text!r}, but must be {wanted}")
        return values

    def number(self, element: Element, attribute: str, of: str) -> float | None:
        """One finite number, or None where the attribute is missing."""
        return None if element.get(attribute) is None else self.numbers(element, attribute, (0.0,), of)[0]

    def _read(self) -> Element:
        try:
            if not self.path.is_file():
                raise SpecError(f"there is no robot file {self.path}")
            size = self.path.stat().st_size
            if size > MAX_BYTES:
                self.fail(f"it has {size} bytes, but a robot file has at most {MAX_BYTES}; keep the robot only")
            data = self.path.read_bytes()
        except OSError as error:
            raise SpecError(f"cannot read the robot file {self.path}: {error.strerror}") from None
        return self._parse(data)

    def _parse(self, data: bytes) -> Element:
        builder, depth, count = TreeBuilder(), 0, 0

        def start(tag: str, attributes: dict[str, str]) -> None:
            nonlocal depth, count
            depth, count = depth + 1, count + 1
            if depth > MAX_DEPTH or count > MAX_ELEMENTS:
                self.fail(f"it is deeper than {MAX_DEPTH} or longer than {MAX_ELEMENTS} elements, which no robot is")
            builder.start(tag, attributes)

        def end(tag: str) -> None:
            nonlocal depth
            depth -= 1
            builder.end(tag)

        def refuse(*_: object) -> None:
            self.fail("it has a document type (<!DOCTYPE …>), which could define entities; remove it")

        parser = expat.ParserCreate()
        parser.StartElementHandler, parser.EndElementHandler = start, end
        parser.StartDoctypeDeclHandler = refuse
        try:
            parser.Parse(data, True)
        except (expat.ExpatError, ValueError, LookupError) as error:
            if isinstance(error, SpecError):
                raise
            self.fail(f"it is not XML: {error}")
        return builder.close()


def list_names(names: object, most: int = 40) -> str:
    """Names for a message, some of them where there are many."""
    known = sorted(str(name) for name in names)  # type: ignore[attr-defined]
    shown = ", ".join(known[:most])
    return shown + (f" and {len(known) - most} more" if len(known) > most else "")
