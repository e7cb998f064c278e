"""Write a bill of materials of what is installed: CycloneDX 1.6 as JSON, on standard output or to a file.

    .venv/bin/python scripts/make_sbom.py [--extra NAME]... [--out sbom.json] [DISTRIBUTION]...

It names the given distributions (by default firsthand and firsthand-onboard), what they need, and what that needs, as
it is installed in this environment: version, licence, package URL, the hashes of constraints-hashes.txt, and who needs
what. The same environment gives the same bytes.
"""

import argparse
import json
import re
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
OURS = ("firsthand", "firsthand-onboard")
ENTRY = re.compile(r"^([a-z0-9._-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)", re.MULTILINE)


def needed_by(name: str, extras: frozenset[str]) -> dict[str, frozenset[str]]:
    """What an installed distribution needs here, with the extras that it asks for."""
    found: dict[str, frozenset[str]] = {}
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            other = str(canonicalize_name(requirement.name))
            found[other] = found.get(other, frozenset()) | frozenset(requirement.extras)
    return found


def collect(roots: dict[str, frozenset[str]]) -> tuple[dict[str, set[str]], set[str]]:
    """Who needs what, from the roots on, and the names of what is needed but not installed."""
    graph: dict[str, set[str]] = {}
    known: dict[str, frozenset[str]] = {}
    missing: set[str] = set()
    waiting = dict(roots)
    while waiting:
        name, extras = waiting.popitem()
        if name in known and extras <= known[name]:
            continue
        known[name] = known.get(name, frozenset()) | extras
        try:
            needs = needed_by(name, known[name])
        except metadata.PackageNotFoundError:
            missing.add(name)
            continue
        graph[name] = set(needs)
        for other, wanted in needs.items():
            waiting[other] = waiting.get(other, frozenset()) | wanted
    return {name: needs - missing for name, needs in graph.items()}, missing


def read_hashes() -> dict[tuple[str, str], list[str]]:
    """The hashes by name and version."""
    path = ROOT / "constraints-hashes.txt"
    entries = ENTRY.findall(path.read_text()) if path.exists() else []
    return {(name, version): re.findall(r"[0-9a-f]{64}", rest) for name, version, rest in entries}


def describe(name: str, hashes: dict[tuple[str, str], list[str]]) -> dict[str, Any]:
    """One component."""
    about: Any = metadata.metadata(name)
    version = metadata.version(name)
    component: dict[str, Any] = {
        "type": "application" if name in OURS else "library",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }
    if about.get("Summary"):
        component["description"] = about["Summary"]
    if about.get("License-Expression"):
        component["licenses"] = [{"expression": about["License-Expression"]}]
    else:
        classifiers = about.get_all("Classifier") or []
        names = [c.rpartition(" :: ")[2] for c in classifiers if c.startswith("License :: ") and c.count("::") > 1]
        short = about.get("License") or ""
        names = names or ([short] if short and len(short) < 80 and "\n" not in short else [])
        if names:
            component["licenses"] = [{"license": {"name": item}} for item in sorted(set(names))]
    if found := hashes.get((name, version)):
        # A component is one file to CycloneDX, but an index offers one per platform: all of them are named.
        component["properties"] = [{"name": "firsthand:sha256", "value": item} for item in found]
    return component


def make_sbom(roots: dict[str, frozenset[str]]) -> dict[str, Any]:
    """The bill of materials; `ValueError` names what is not installed."""
    graph, missing = collect(roots)
    if missing:
        raise ValueError(f"not installed here: {', '.join(sorted(missing))}")
    hashes = read_hashes()
    components = [describe(name, hashes) for name in sorted(graph)]
    place = {component["name"]: component["bom-ref"] for component in components}
    main = place[next(iter(roots))]
    content = {
        "metadata": {"component": next(c for c in components if c["bom-ref"] == main)},
        "components": [c for c in components if c["bom-ref"] != main],
        "dependencies": [
            {"ref": place[name], "dependsOn": sorted(place[other] for other in needs)}
            for name, needs in sorted(graph.items())
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}", "version": 1}
    return {**head, **content}


def main() -> int:
    """Write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("distributions", nargs="*", default=list(OURS))
    parser.add_argument("--extra", action="append", default=[], help="an extra of the distributions that is installed")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    roots = {str(canonicalize_name(name)): frozenset[str](given.extra) for name in given.distributions}
    try:
        text = json.dumps(make_sbom(roots), indent=1, ensure_ascii=False) + "\n"
    except ValueError as error:
        print(f"make_sbom.py: {error}", file=sys.stderr)
        return 2
    if given.out is None:
        print(text, end="")
    else:
        given.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
