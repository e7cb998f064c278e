"""Effects of a plant that can be switched off one by one, by their names."""

from dataclasses import dataclass, fields, replace
from typing import TypeVar

from ..errors import UserError, suggest

AnySwitches = TypeVar("AnySwitches", bound="Switches")


@dataclass(frozen=True)
class Switches:
    """A dataclass of booleans, each of which is one effect; all are on unless told otherwise."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Of all effects."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def none(cls: type[AnySwitches]) -> AnySwitches:
        """No effect at all."""
        return cls(**dict.fromkeys(cls.names(), False))

    @classmethod
    def only(cls: type[AnySwitches], *names: str) -> AnySwitches:
        """These and no others."""
        return replace(cls.none(), **dict.fromkeys(map(cls._check_name, names), True))

    def without(self: AnySwitches, *names: str) -> AnySwitches:
        """The same with these switched off."""
        return replace(self, **dict.fromkeys(map(self._check_name, names), False))

    @classmethod
    def parse(cls: type[AnySwitches], text: str) -> AnySwitches:
        """From a user's list: `no-friction,no-swing` for all but these, `friction,base` for these alone, or `none`."""
        words = [word.strip() for word in text.split(",") if word.strip()]
        if words == ["none"]:
            return cls.none()
        off = [word.removeprefix("no-") for word in words if word.startswith("no-")]
        on = [word for word in words if not word.startswith("no-")]
        if off and on:
            raise UserError(
                f"effects are {text!r}, but must be either all without some (no-{off[0]}) or some alone ({on[0]})."
            )
        if not words:
            raise UserError(f"there are no effects after the colon; known are {', '.join(cls.names())}.")
        return cls().without(*off) if off else cls.only(*on)

    @classmethod
    def _check_name(cls, name: str) -> str:
        if name not in cls.names():
            raise UserError(
                f"there is no effect {name!r}{suggest(name, cls.names())}; known are {', '.join(cls.names())}."
            )
        return name
