"""Files that the documentation shows in full: code blocks whose first line is `# name.py`."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def documented_files(page: str) -> dict[str, str]:
    """The files in a page of the repository, by name."""
    blocks = re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return {name: code for code, name in blocks}
