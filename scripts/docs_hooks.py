"""What MkDocs asks for while it builds the site: pages that are made from the code, and links that leave docs/.

Made at every build: the Python reference from the names of `import firsthand`, the command line from its parser, the
settings from their declarations, the notebooks, the changelog. Nothing of it is kept in the repository.
"""

import contextlib
import io
import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "examples" / "notebooks"
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
ITEM = re.compile(r" *(?:[-*+]|\d+\.) +")
ELSEWHERE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
"""Files beside docs/ that are pages of the site, too."""
PACKAGES = ("firsthand", "firsthand_onboard")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made."""
    from mkdocs.structure.files import File

    made = {
        "reference/python.md": python_page(),
        "reference/command_line.md": command_line_page(),
        "reference/settings.md": settings_page(),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
        **{f"notebooks/{path.stem}.md": notebook_page(path) for path in sorted(NOTEBOOKS.glob("*.ipynb"))},
    }
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_config(config: Any) -> Any:
    """A folder in the navigation stands for its pages."""
    for section in config.nav:
        for entries in section.values():
            for entry in entries:
                if isinstance(entry, dict) and next(iter(entry.values())) == "decisions/":
                    name = next(iter(entry))
                    notes = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("0*.md"))
                    entry[name] = ["decisions/README.md", *(f"decisions/{note}" for note in notes)]
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links out of docs/ become links to pages of the site, or the file's name; lists are indented as MkDocs wants."""
    return indent_lists(rewrite_links(markdown, page.file.src_uri))


def indent_lists(markdown: str) -> str:
    """Four spaces for what is inside an item of a list. GitHub counts from the item's text, MkDocs does not."""
    inside: list[int] = []  # per open list: the column at which the text of its item begins
    made, fenced, before = [], False, ""
    for line in markdown.splitlines():
        indent = len(line) - len(line.lstrip())
        item = None if fenced else ITEM.match(line)
        if line.strip() and not fenced and (item or not before.strip()):
            while inside and indent < inside[-1]:
                inside.pop()
        if line.strip() and (item or not inside or indent >= inside[-1]):
            made.append(" " * 4 * len(inside) + line[inside[-1] if inside else 0 :])
        else:
            made.append(line)
        if item:
            inside.append(item.end())
        fenced ^= line.lstrip().startswith("```")
        before = line
    return "\n".join(made) + "\n"


def rewrite_links(markdown: str, source: str) -> str:
    """The text of a page with links that hold inside the site. `source` is the page's path in docs/."""
    # Where the text lies in the repository: some pages lie beside docs/, not in it.
    elsewhere = {"changelog.md": "", "notebooks": "examples/notebooks"}
    folder = elsewhere.get(source, elsewhere.get(posixpath.dirname(source)))
    folder = posixpath.join("docs", posixpath.dirname(source)) if folder is None else folder

    def rewrite(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return found[0]
        full = posixpath.normpath(posixpath.join(folder, path))
        if full.startswith("docs/") and full.endswith((".md", ".png", ".gif", ".svg")):
            inside = full.removeprefix("docs/")
        elif full in ELSEWHERE:
            inside, anchor = ELSEWHERE[full], ""
        elif full in ("docs/decisions", "docs"):
            inside = "decisions/README.md" if full.endswith("decisions") else "index.md"
        else:
            return f"{text} (`{full}`)" if full not in text else text
        if re.fullmatch(r"(?:\w+/)*\w+\.md", text):  # a file's name says little on a site
            text = posixpath.basename(text).removesuffix(".md").replace("_", " ")
        here = posixpath.relpath(inside, posixpath.dirname(source) or ".")
        return f"[{text}]({here}{'#' + anchor if anchor else ''})"

    # Every other part lies between fences: code stays as it is.
    parts = re.split(r"(?m)(^ *```.*$)", markdown)
    fences = 0
    for number, part in enumerate(parts):
        if part.lstrip().startswith("```"):
            fences += 1
        elif fences % 2 == 0:
            parts[number] = LINK.sub(rewrite, part)
    return "".join(parts)


# Pages that are made


def python_page() -> str:
    """Every name of `import firsthand`, from its docstring."""
    import firsthand

    entries = []
    for name in firsthand.__all__:
        found = getattr(firsthand, name)
        module, qualified = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
        if module and qualified and module.split(".")[0] in PACKAGES:
            entries.append(f"::: {module}.{qualified}\n    options:\n      heading_level: 2\n")
        else:
            entries.append(f"## {name}\n\n{_described(name, found)}\n")
    return "# Python\n\n`import firsthand as fh` offers these names; everything else is private.\n\n" + "\n".join(
        entries
    )


def _described(name: str, found: Any) -> str:
    """A name that is no class or function of ours: a module by its first words, anything else by what it holds."""
    if isinstance(found, dict):
        return f"By name: {', '.join(f'`{key}`' for key in found)}."
    return " ".join((getattr(found, "__doc__", None) or f"`{name}`").split())[:400]


def command_line_page() -> str:
    """The help of every command, as the parser prints it."""
    from firsthand.cli import COMMANDS

    parts = [
        "# Command line\n\nAs `firsthand COMMAND --help` prints it. For a tour of the commands see "
        "[all commands](../commands.md).\n"
    ]
    for name in COMMANDS:
        text = help_text([name])
        parts.append(f"## firsthand {name}\n\n```text\n{text}\n```\n")
        listed = re.search(r"\{([a-z,]+)\}", text)
        for inner in listed[1].split(",") if listed else ():
            parts.append(f"### firsthand {name} {inner}\n\n```text\n{help_text([name, inner])}\n```\n")
    return "\n".join(parts)


def help_text(words: list[str]) -> str:
    """What `firsthand WORDS --help` prints, without colours and frames."""
    from firsthand.cli import parse_command

    os.environ.update(COLUMNS="100", NO_COLOR="1", TERM="dumb")
    out = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(out):
        parse_command([*words, "--help"])
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def settings_page() -> str:
    """Every setting with its default per preset and what it may be, from where it is declared."""
    from firsthand.agent.settings import all_settings
    from firsthand.training.presets import PRESETS

    rows: dict[str, list[str]] = {}
    for path, _, field in all_settings():
        (group, name), bounds = path.split("."), field.metadata["bounds"]
        values = [getattr(getattr(preset, group), name) for preset in PRESETS.values()]
        cells = [f"`--{group}.{name}`", bounds.doc, bounds.range or "", *(_shown(value) for value in values)]
        rows.setdefault(group, []).append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    head = f"| setting | what it does | may be | {' | '.join(PRESETS)} |\n|---|---|---|{'---|' * len(PRESETS)}\n"
    text = [
        "# Settings\n\nOptions of `firsthand train` and keys of `settings` in `fh.train`. The last columns are the "
        "presets' values.\n"
    ]
    text += [f"## {group}\n\n{head}" + "\n".join(lines) + "\n" for group, lines in rows.items()]
    return "\n".join(text)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def notebook_page(path: Path) -> str:
    """A notebook as a page: its text, its code, and what was printed where outputs are kept."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            text = "".join(output.get("text", ()) or output.get("data", {}).get("text/plain", ()))
            parts.append(f"```text\n{text.rstrip()}\n```")
    note = f"*This page is the notebook `examples/notebooks/{path.name}`.*"
    return "\n\n".join([*parts, note]) + "\n"
