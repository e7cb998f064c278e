"""Which share of the command range a run has earned on a machine, with proof that this user's trainer recorded it.

A run folder may come from anybody. The `authority` in a line of metrics.jsonl counts only on the machine whose identity
the line names, and only if this user's trainer has written the line for this run. The proof is a code made with a key
from the user's state folder. It is valid for one machine, one run and one episode.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from ..cache import state_folder
from ..errors import UserError
from ..runs import atomic

KEY_BYTES = 32
_key_here: list[bytes] = []
"""Also kept in memory, for a home folder that cannot be written to."""


def authority_metrics(machine: str, run: str, episode: int, authority: float) -> dict[str, Any]:
    """What a line of metrics.jsonl says about the share that an episode used; machine and run by their identities."""
    proof = _code(machine, run, episode, authority) if machine else None
    return {"authority": authority, "machine_id": machine or None, "authority_proof": proof}


def is_earned(row: Mapping[str, Any], machine: str, run: str) -> bool:
    """Whether a line tells what this user's trainer did in this run on the machine with this identity."""
    authority, episode, proof = row.get("authority"), row.get("episode"), row.get("authority_proof")
    if not machine or row.get("machine_id") != machine or not isinstance(proof, str) or not isinstance(episode, int):
        return False
    if not isinstance(authority, int | float) or isinstance(authority, bool) or not 0 < authority <= 1:
        return False
    return hmac.compare_digest(proof.encode(errors="replace"), _code(machine, run, episode, float(authority)).encode())


def _code(machine: str, run: str, episode: int, authority: float) -> str:
    return hmac.new(_key(), f"{machine} {run} {episode} {authority!r}".encode(), hashlib.sha256).hexdigest()[:32]


def _key() -> bytes:
    """This user's key; made when it is first needed."""
    path = state_folder() / "trainer.key"
    try:
        key = atomic.read_bytes(path, 1024)
    except OSError:
        key = b""
    if len(key) != KEY_BYTES:
        if not _key_here:
            _key_here.append(secrets.token_bytes(KEY_BYTES))
        key = _key_here[0]
        try:
            atomic.make_folder(path.parent)
            atomic.write_bytes(path, key, mode=0o600)
        except UserError:  # then it lasts as long as this process
            pass
    return key
