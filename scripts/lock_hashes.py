"""Write constraints-hashes.txt: every pinned package with the SHA-256 of the files that an index offers for it.

    .venv/bin/python scripts/lock_hashes.py [--index URL]... [--check]

Run it when constraints.txt has changed. `--check` writes nothing and ends with 1 where the file does not name exactly
the packages of constraints.txt; it needs no index. The file holds no address: pip takes packages from the indexes that
it is configured with, and refuses whatever has another hash:

    pip install --require-hashes --no-deps -r constraints-hashes.txt
    pip install --no-deps --no-build-isolation -e onboard -e . -e lab

Wheels of Python 3.10 and newer are named for every platform, source archives only where there is no wheel.
"""

import argparse
import concurrent.futures
import html.parser
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
SOURCE, TARGET = ROOT / "constraints.txt", ROOT / "constraints-hashes.txt"
HEAD = "# Written by scripts/lock_hashes.py from constraints.txt; not to be edited.\n"
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
HASH = re.compile(r"sha256=([0-9a-f]{64})")
OLD_PYTHON = re.compile(r"cp(2\d|3[0-9])$|py2$|pp\d+$")
"""Python tags of wheels that Python 3.10 cannot use, unless they are of the stable interface."""


class Links(html.parser.HTMLParser):
    """The links of a page of an index."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep where a link leads."""
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def read_pins(text: str) -> dict[str, str]:
    """Versions by name, as they stand in a file of constraints."""
    return {canonicalize_name(name): version for name, version in PIN.findall(text)}


def fetch_links(index: str, name: str) -> list[str]:
    """The links to a package's files; none where the index does not have it."""
    address = f"{index.rstrip('/')}/{name}/"
    if address.startswith("file:"):
        address += "index.html"
    try:
        with urllib.request.urlopen(address, timeout=60) as page:
            links = Links()
            links.feed(page.read().decode())
            return links.found
    except urllib.error.URLError as error:
        if isinstance(error, urllib.error.HTTPError) and error.code != 404:
            raise
        if not isinstance(error, urllib.error.HTTPError) and not address.startswith("file:"):
            raise
        return []


def choose_hashes(links: Sequence[str], name: str, version: str) -> list[str]:
    """The hashes of the files of one version: of its wheels, or of its source archive where there are none."""
    wheels, archives = set(), set()
    for link in links:
        path, _, fragment = link.partition("#")
        file = urllib.parse.unquote(path.rpartition("/")[2])
        found = HASH.search(fragment)
        try:
            if found and file.endswith(".whl"):
                distribution, its_version, _, tags = parse_wheel_filename(file)
                usable = any(not OLD_PYTHON.match(tag.interpreter) or tag.abi == "abi3" for tag in tags)
                if (distribution, its_version) == (name, Version(version)) and usable:
                    wheels.add(found[1])
            elif found and parse_sdist_filename(file) == (name, Version(version)):
                archives.add(found[1])
        except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
            continue
    return sorted(wheels or archives)


def write_lock(pins: dict[str, str], hashes: dict[str, list[str]]) -> str:
    """The text of constraints-hashes.txt."""
    entries = []
    for name, version in sorted(pins.items()):
        entries.append(" \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{item}" for item in hashes[name])]))
    return HEAD + "\n".join(entries) + "\n"


def describe_difference(wanted: dict[str, str], found: dict[str, str]) -> str:
    """One sentence about the first package that differs; empty where none does."""
    for name in sorted({*wanted, *found}):
        if wanted.get(name) != found.get(name):
            return (
                f"{TARGET.name} has {name} {found.get(name, 'not at all')}, but {SOURCE.name} "
                f"{wanted.get(name, 'not at all')}: run scripts/lock_hashes.py."
            )
    return ""


def main() -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", action="append", help="an index to ask; the first that has a version counts")
    parser.add_argument("--check", action="store_true", help="only compare the packages with constraints.txt")
    given = parser.parse_args()
    pins = read_pins(SOURCE.read_text())
    if given.check:
        difference = describe_difference(pins, read_pins(TARGET.read_text()))
        print(difference or f"{TARGET.name} names the {len(pins)} packages of {SOURCE.name}.")
        return 1 if difference else 0

    def look_up(name: str) -> list[str]:
        for index in given.index or ["https://pypi.org/simple"]:
            if hashes := choose_hashes(fetch_links(index, name), name, pins[name]):
                return hashes
        return []

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        hashes = dict(zip(pins, pool.map(look_up, pins), strict=True))
    missing = [f"{name}=={pins[name]}" for name in pins if not hashes[name]]
    if missing:
        print(f"No index has a hash for {', '.join(missing)}.", file=sys.stderr)
        return 1
    TARGET.write_text(write_lock(pins, hashes))
    print(f"{TARGET.name}: {len(pins)} packages, {sum(map(len, hashes.values()))} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
