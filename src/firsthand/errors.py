"""The one exception that a user is meant to read."""


class UserError(Exception):
    """Something the user gave is wrong; the message is one sentence that says what, and what would be right.

    The command line prints the message without a traceback and exits with code 2. Names in it may come from anybody's
    file: what would break the line or control a terminal becomes a blank.
    """

    def __str__(self) -> str:
        return "".join(c if c.isprintable() else " " for c in super().__str__())


def how_to_install(extra: str) -> str:
    """The command that installs an extra of firsthand, as the documentation gives it."""
    return f"pip install -c constraints.txt -e onboard -e '.[{extra}]' (in firsthand's own folder)"


def suggest(word: str, known: "list[str] | tuple[str, ...]") -> str:
    """` (did you mean 'x'?)` for the known word nearest to `word`, or an empty string when none is near."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
