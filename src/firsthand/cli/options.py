"""Every setting of the agent as an option of the command line, made from `agent.settings`."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Annotated, Any

from tyro.conf import arg

from ..agent.settings import GROUPS, Bounds, Group, check_name, is_number, option_name
from ..errors import UserError


def _option(group: str, field: "dataclasses.Field[Any]") -> tuple[str, Any, None]:
    """The field of the options' dataclass: what is not given is None."""
    bounds: Bounds = field.metadata["bounds"]
    short = [] if bounds.option is None else [f"--{bounds.option}"]
    kind, metavar = (float, "X") if is_number(field) else (int, "N")
    if isinstance(field.default, tuple):
        kind, metavar = tuple[int, ...], "N..."
    name = option_name(f"{group}.{field.name}").removeprefix("--")
    described = arg(
        name=name, aliases=short, metavar=metavar, help=f"{_capitalise(bounds.doc)}.", help_behavior_hint=""
    )
    return field.name, Annotated[kind | None, described], None


def _capitalise(sentence: str) -> str:
    """With a capital first letter, but not a Greek one: η is a symbol."""
    return sentence[0].upper() + sentence[1:] if sentence[0].isascii() else sentence


def _options(name: str, group: type[Group]) -> Any:
    fields = [_option(name, field) for field in dataclasses.fields(group)]
    made = dataclasses.make_dataclass(f"{group.__name__}Options", fields, frozen=True)
    made.__doc__ = group.__doc__
    return made


SettingsOptions: Any = dataclasses.make_dataclass(
    "SettingsOptions",
    [(name, made, made()) for name, made in ((name, _options(name, group)) for name, group in GROUPS.items())],
    frozen=True,
)
"""A dataclass like `Settings` for tyro, in which every setting is None unless it was given."""


def given_settings(options: Any) -> dict[str, Any]:
    """The settings that were given, by full name: what `Settings.with_changes` takes."""
    return {
        f"{group}.{name}": value
        for group in GROUPS
        for name, value in vars(getattr(options, group)).items()
        if value is not None
    }


WHOLE = ("episodes", "seed", "seeds", "workers")
"""Options of every command that are whole numbers."""


def check_whole_numbers(arguments: Sequence[str]) -> None:
    """Raise `UserError` for `--episodes 1.5`."""
    for word, following in itertools.pairwise([*arguments, ""]):
        name, equals, value = word.partition("=")
        value = value if equals else following
        is_whole = value.removeprefix("-").replace("_", "").isdecimal()
        if name.startswith("--") and name.removeprefix("--") in WHOLE and value and not is_whole:
            raise UserError(f"{name.removeprefix('--')} is {value!r}, but must be a whole number.")


def check_options(arguments: Sequence[str]) -> None:
    """Raise `UserError` for an option like `--model.eta` that names no setting, with the one that was meant."""
    for word in arguments if arguments[:1] == ["train"] else ():
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and "." in name and not name.startswith("."):
            try:
                check_name(name)
            except UserError as error:
                raise UserError(_as_options(str(error))) from None


def _as_options(sentence: str) -> str:
    """The sentence of `check_name` with options in place of names."""
    words = [
        option_name(word) if "." in word.rstrip("?.,;") else word.replace("_", "-") for word in sentence.split(" ")
    ]
    return " ".join(words)
