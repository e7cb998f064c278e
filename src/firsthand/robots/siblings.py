"""Modules beside a robot file: what it imports from its own folder runs only if the user has allowed it.

The folder is not put on Python's path: then any module could import any file in it, and compiled files in it would be
trusted. Its modules are found last, after everything that is installed. Each is read once and compared with what the
user has allowed, and exactly that text runs.
"""

import hashlib
import sys
from collections.abc import Iterable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from ..runs import atomic
from .approval import approve, require_approval

_folders: dict[str, Path] = {}
"""Folders of robot files that were loaded, and the file."""
_trusted: set[str] = set()
"""Folders of robot files that the user has named in this process: what they import is part of what he has named."""


def add_folder(robot_file: Path) -> None:
    """Let a robot file import what lies beside it."""
    _folders.setdefault(str(robot_file.parent), robot_file)
    if _FIRST not in sys.meta_path:
        sys.meta_path.insert(0, _FIRST)
        sys.meta_path.append(_LAST)


def trust(robot_file: Path) -> None:
    """The user has named this file: what it imports from its folder is allowed as it is then."""
    _trusted.add(str(robot_file.parent))


class _ApprovedSource(SourceFileLoader):
    """Runs the text that was approved, never a compiled file beside it."""

    def __init__(self, fullname: str, path: str, text: bytes) -> None:
        super().__init__(fullname, path)
        self._text = text

    def get_data(self, path: str) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._text if path == self.path else super().get_data(path)

    def get_code(self, fullname: str) -> CodeType | None:
        return compile(self._text, self.path, "exec", dont_inherit=True)


def _find(fullname: str, places: Iterable[str]) -> ModuleSpec | None:
    """The module in the first of these places that has it, if the user allows it."""
    for place in places:
        folder = _owner(place)
        spec = PathFinder.find_spec(fullname, [place]) if folder is not None else None
        if spec is None or folder is None:
            continue
        if spec.origin is None or not spec.has_location:  # a folder without code of its own
            return spec
        path = Path(spec.origin)
        content = atomic.read_bytes(path)
        sha256 = hashlib.sha256(content).hexdigest()
        if folder in _trusted:
            approve(path, sha256)
        require_approval(path, sha256, _folders[folder])
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader, spec.cached = _ApprovedSource(fullname, spec.origin, content), None
        return spec
    return None


def _owner(place: str) -> str | None:
    """The folder of a robot file in which a place lies."""
    return next((folder for folder in _folders if place == folder or place.startswith(folder.rstrip("/") + "/")), None)


class _Inside(MetaPathFinder):
    """Modules of packages that lie in such a folder: before Python's own finders, which would believe everything."""

    def find_spec(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, fullname: str, path: Iterable[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if path is None else _find(fullname, [str(place) for place in path])


class _Beside(MetaPathFinder):
    """Modules that nothing else has imported."""

    def find_spec(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, fullname: str, path: Iterable[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return _find(fullname, list(_folders)) if path is None else None


_FIRST, _LAST = _Inside(), _Beside()
