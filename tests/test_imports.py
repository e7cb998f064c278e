"""Who may import whom: the table of docs/architecture.md, held to. Imports inside functions count.

A row of the table names packages of `firsthand` and, in its last column, what they import of it. Everybody may import
the packages of the first row. The rows are in order: a package imports only what stands above it, so there is no cycle.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {
    "firsthand": ROOT / "src" / "firsthand",
    "firsthand_onboard": ROOT / "onboard" / "src" / "firsthand_onboard",
    "firsthand_lab": ROOT / "lab" / "src" / "firsthand_lab",
}
ROW = re.compile(r"^\| (?P<packages>`[^|]*) \|[^|]*\| (?P<imports>[^|]*) \|$", re.MULTILINE)
FOR_EVERYBODY = "nothing; everybody may import them"
SHARED = {"errors", "units", "console", "drawing", "interrupt", "cache", "advice", "standstill"}


def table() -> dict[str, set[str]]:
    """What each package may import of `firsthand`, in the order of the page."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page[page.index("## Packages") : page.index("Rules that hold whatever the table says")]
    allowed: dict[str, set[str]] = {}
    for row in ROW.finditer(section):
        above, imports = set(allowed), row["imports"]
        for name in re.findall(r"`(\w+)`", row["packages"]):
            named = above if imports == "everything above" else set(re.findall(r"`(\w+)`", imports))
            allowed[name] = named | (set() if imports == FOR_EVERYBODY else SHARED)
            assert imports in ("nothing", "everything above", FOR_EVERYBODY) or named, f"{name}: {imports!r}"
            assert named <= above, f"the row of {name} names {named - above}, which are not above it"
    return allowed


def modules(distribution: str) -> Iterator[tuple[str, Path]]:
    """Every module of a distribution, by its dotted name."""
    root = SOURCES[distribution]
    for path in sorted(root.rglob("*.py")):
        parts = [distribution, *path.relative_to(root).with_suffix("").parts]
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(module: str, path: Path) -> Iterator[tuple[str, int]]:
    """The dotted name of everything that a module imports, and the line; names taken from a package are part of it."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module or "").split(".")] if node.module else base
            yield from ((".".join([*base, alias.name]), node.lineno) for alias in node.names)


def edges() -> Iterator[tuple[str, str, str]]:
    """Every import between packages of `firsthand`: from, to, where."""
    packages = {module.split(".")[1] for module, _ in modules("firsthand") if "." in module}
    for module, path in modules("firsthand"):
        parts = module.split(".")
        if len(parts) == 1 or parts[1] == "__main__":
            continue  # the door opens onto everything
        for target, line in imported(module, path):
            name = target.split(".")
            if name[0] == "firsthand" and len(name) > 1 and name[1] in packages and name[1] != parts[1]:
                yield parts[1], name[1], f"{path.relative_to(ROOT)}:{line}"


ALLOWED = table()


def test_the_table_has_every_package() -> None:
    packages = {module.split(".")[1] for module, _ in modules("firsthand") if "." in module} - {"__main__"}
    assert packages == set(ALLOWED)


def test_packages_import_what_the_table_allows() -> None:
    wrong = [
        f"{source} imports {target} ({where})"
        for source, target, where in edges()
        if target not in ALLOWED.get(source, set())
    ]
    assert not wrong, "\n".join(["against the table of docs/architecture.md:", *wrong])


def test_what_is_decided_stands_in_the_table() -> None:
    """The directions of the design, whatever else the table says."""
    own = {name: allowed - SHARED for name, allowed in ALLOWED.items()}
    assert own["optim"] == own["models"] == own["tasks"] == own["runs"] == set()
    assert own["agent"] == {"optim", "models"}
    assert own["plants"] == {"models"}
    assert "agent" not in own["robots"]
    assert not [name for name, allowed in own.items() if "cli" in allowed], "nobody imports the command line"


@pytest.mark.parametrize("distribution", ["firsthand", "firsthand_onboard"])
def test_nobody_imports_the_laboratory(distribution: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for module, path in modules(distribution)
        for target, line in imported(module, path)
        if target.split(".")[0] == "firsthand_lab"
    ]
    assert not found


def test_the_robots_computer_needs_nothing_of_firsthand() -> None:
    ours = {"firsthand", "firsthand_lab", "jax", "equinox", "optax", "scipy", "matplotlib"}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {target}"
        for module, path in modules("firsthand_onboard")
        for target, line in imported(module, path)
        if target.split(".")[0] in ours
    ]
    assert not found


def test_the_laboratory_imports_no_command_line_of_firsthand() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for module, path in modules("firsthand_lab")
        for target, line in imported(module, path)
        if target.startswith("firsthand.cli")
    ]
    assert not found
