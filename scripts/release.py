"""Write a release into the repository: its version wherever one stands, and its date in the changelog.

    python scripts/release.py 0.2.0 --date 2026-11-19
    python scripts/release.py --check               whether all places have one version; ends with 1 where they have not

The three distributions are released together and need each other in exactly this version. `PLACES` is where it stands.
The changelog's "Unreleased" becomes the release, and an empty one is left above it. Nothing is committed or tagged.
"""

import argparse
import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r"\d+\.\d+\.\d+(?:rc\d+)?")
PLACES = (
    ("pyproject.toml", 'version = "{}"'),
    ("pyproject.toml", '"firsthand-onboard=={}"'),
    ("onboard/pyproject.toml", 'version = "{}"'),
    ("lab/pyproject.toml", 'version = "{}"'),
    ("lab/pyproject.toml", '"firsthand=={}"'),
    ("src/firsthand/__init__.py", '__version__ = "{}"'),
    ("onboard/src/firsthand_onboard/__init__.py", '__version__ = "{}"'),
    ("CITATION.cff", "version: {}"),
)
"""File, and the text around the version."""
CHANGELOG, UNRELEASED = "CHANGELOG.md", "## Unreleased\n"


def pattern(text: str) -> re.Pattern[str]:
    """Finds the version within a place's text, where a line or an item begins."""
    before, after = map(re.escape, text.split("{}"))
    return re.compile(rf"(?m)((?:^|[\[\s]){before})({VERSION.pattern})(?={after})")


def versions(root: Path = ROOT) -> list[tuple[str, str]]:
    """Each place with the version that stands there, or with what is wrong."""
    found = []
    for name, text in PLACES:
        here = pattern(text).findall((root / name).read_text())
        found.append((f"{name}: {text}", here[0][1] if len(here) == 1 else f"{len(here)} times"))
    return found


def check(root: Path = ROOT) -> list[str]:
    """What disagrees, a line each; empty where all is well."""
    found = versions(root)
    first = found[0][1]
    return [f"{place} has {version}, but {PLACES[0][0]} has {first}" for place, version in found if version != first]


def release(version: str, date: datetime.date, root: Path = ROOT) -> list[str]:
    """Write a version and its date; the files that were changed."""
    changelog = (root / CHANGELOG).read_text()
    if f"## {version} " in changelog:
        raise SystemExit(f"{CHANGELOG} has a section for {version} already.")
    _, heading, rest = changelog.partition(UNRELEASED)
    if not heading or not re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0].strip():
        raise SystemExit(f"{CHANGELOG} has nothing under {UNRELEASED.strip()!r} to release.")
    for name, text in PLACES:
        path = root / name
        changed, count = pattern(text).subn(rf"\g<1>{version}", path.read_text())
        if count != 1:
            raise SystemExit(f"{name} has {text.format('VERSION')!r} {count} times, but must have it once.")
        path.write_text(changed)
    (root / CHANGELOG).write_text(changelog.replace(UNRELEASED, f"{UNRELEASED}\n## {version} ({date})\n", 1))
    return [*dict.fromkeys(name for name, _ in PLACES), CHANGELOG]


def main(arguments: list[str] | None = None) -> int:
    """As from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", nargs="?", help="like 0.2.0 or 0.2.0rc1")
    parser.add_argument("--date", type=datetime.date.fromisoformat, default=datetime.date.today())
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args(arguments)
    if given.check:
        wrong = check()
        print("\n".join(wrong) or f"All {len(PLACES)} places have {versions()[0][1]}.")
        return 1 if wrong else 0
    if given.version is None or not VERSION.fullmatch(given.version):
        raise SystemExit(f"version is {given.version!r}, but must be like 0.2.0 or 0.2.0rc1.")
    changed = release(given.version, given.date)
    print(f"{given.version} ({given.date}) is in {', '.join(changed)}. Still to do: make test, commit, tag.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
