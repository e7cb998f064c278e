"""List long sentences of the documentation, and how long sentences are on average.

python scripts/long_sentences.py              # every page, with its average and its sentences over 30 words
python scripts/long_sentences.py docs/goals.md
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONG = 30
"""Words beyond which a sentence is listed."""
AVERAGE = 17.0
"""Words that the sentences of a page may have on average."""
ABBREVIATIONS = ("e.g.", "i.e.", "vs.", "et al.", "Fig.", "No.", "approx.")


def pages() -> list[Path]:
    """The pages that people read from beginning to end: decisions and the changelog are looked up."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """The sentences of a page with the number of their first line: no code, tables, headings or pictures."""
    for first, paragraph in _paragraphs(text):
        plain = re.sub(r"!\[[^\]]*\]\([^)]*\)|<!--.*?-->", "", paragraph)
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain)
        plain = re.sub(r"`[^`]*`", "CODE", plain)
        for abbreviation in ABBREVIATIONS:
            plain = plain.replace(abbreviation, abbreviation.replace(".", ""))
        for sentence in re.split(r"(?<=[.!?])[*_)\"”]*\s+(?=[\"“(*_]*[A-ZΑ-Ω0-9])", plain):
            if sentence.strip():
                yield first, " ".join(sentence.split())


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and items of lists, each with its first line."""
    lines: list[str] = []
    first, fenced = 1, False
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        ends = fenced or fence or not line.strip() or re.match(r"\s*[|#>]", line) is not None
        item = re.match(r"\s*(?:[-*+]|\d+\.)\s+", line)
        if lines and (ends or item):
            yield first, " ".join(lines)
            lines = []
        if not ends:
            if not lines:
                first = number
            lines.append(line[item.end() :] if item else line)


def words(sentence: str) -> int:
    """How many words a sentence has; signs alone are none."""
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def average(text: str) -> float:
    """Words per sentence."""
    counts = [words(sentence) for _, sentence in sentences(text)]
    return sum(counts) / max(len(counts), 1)


def main(arguments: Sequence[str]) -> int:
    """Print pages above the average that is wanted, and every long sentence."""
    many = 0
    for page in [Path(argument).resolve() for argument in arguments] or pages():
        text = page.read_text()
        long = [(line, s) for line, s in sentences(text) if words(s) > LONG]
        many += len(long)
        print(f"{page.relative_to(ROOT)}: {average(text):.1f} words per sentence, {len(long)} over {LONG}")
        for line, sentence in long:
            print(f"  {line}: {words(sentence)} words: {sentence}")
    return 1 if many else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
