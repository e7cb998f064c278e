"""Which machines this user's trainer has met, and the secrets with which they prove their identity.

A machine reports its identity, but anybody can report that. At the first connection it gives the trainer a secret,
which is stored in the user's state folder. From then on the machine has to answer a challenge with it. The name of a
machine alone is not enough to do that. An attacker who relays challenge and answer could pass: certificates prevent
that.
"""

import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from firsthand_onboard.identity import answer_of

from ..cache import state_folder
from ..errors import UserError
from ..runs import atomic

NAME = re.compile(r"[0-9a-f]{8,64}")
SECRET = re.compile(r"[0-9a-f]{64}")
MAX_BYTES = 4096

Ask = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | None]
"""Asks the machine something; None where it refuses."""


def is_the_one(machine: str, proves: bool, ask: Ask) -> bool:
    """Whether the machine that calls itself so is the one that was met before; at the first meeting it is believed."""
    if not NAME.fullmatch(machine):
        return True  # no authority was earned under this name
    known = _recall(machine)
    if known is None:
        if proves:
            _meet(machine, ask)
        return True
    tag, secret = known
    question = secrets.token_hex(16)
    answer = ask("prove", {"tag": tag, "question": question}) if proves else None
    given = "" if answer is None else str(answer.get("answer"))
    return hmac.compare_digest(given.encode(errors="replace"), answer_of(secret, question).encode())


def _meet(machine: str, ask: Ask) -> None:
    tag = secrets.token_hex(16)
    answer = ask("meet", {"tag": tag})
    secret = "" if answer is None else str(answer.get("secret"))
    if SECRET.fullmatch(secret):
        try:
            atomic.make_folder(_file(machine).parent)
            atomic.write_bytes(_file(machine), json.dumps({"tag": tag, "secret": secret}).encode(), mode=0o600)
        except UserError:  # a home that cannot be written to: it is met anew next time
            pass


def _recall(machine: str) -> tuple[str, str] | None:
    try:
        content = json.loads(atomic.read_bytes(_file(machine), MAX_BYTES))
        tag, secret = content["tag"], content["secret"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return (tag, secret) if isinstance(tag, str) and isinstance(secret, str) else None


def _file(machine: str) -> Path:
    return state_folder() / "machines" / f"{machine}.json"
