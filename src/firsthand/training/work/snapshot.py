"""Everything that a `WorkLearner` has learned, as named arrays and plain values, and back, bit for bit.

    contexts.3.state.…     the learner's state under conditions 3
    contexts.3.good.…      policy and record of the last good state, where that is another one
    contexts.3.chunks.…    the work that is remembered, one chunk after the other; `rows` has the length of each
    newest.0.…             the newest blocks, as they were measured; of the conditions in use

An update that is under way is not in it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...agent import LearnerState
from ...robots import EpisodeRecord
from ...runs.pytrees import from_arrays, to_arrays
from .chunks import Chunk, ChunkStore
from .contexts import Context
from .learner import WorkLearner
from .standing import Standing

Arrays = dict[str, np.ndarray]

_COUNTERS = ("block", "current", "next_number", "since_update")
_ABOUT_CONTEXT = ("born", "used", "usual", "error", "updates", "history")
_PER_ROW = ("states", "commands", "following", "sound")


def take_snapshot(learner: WorkLearner) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and the plain values of a checkpoint."""
    arrays: Arrays = {}
    info: dict[str, Any] = {name: getattr(learner, name) for name in _COUNTERS}
    info["contexts"] = {}
    for number, context in learner.contexts.items():
        parts = {"state": to_arrays(context.state), "chunks": _chunk_arrays(context.store)}
        if context.good is not None and context.good is not context.state:
            parts["good"] = to_arrays(_judged_parts(context.good))
        for name, part in parts.items():
            arrays |= _prefixed(f"contexts.{number}.{name}.", part)
        info["contexts"][str(number)] = {name: getattr(context, name) for name in _ABOUT_CONTEXT} | {
            "standing": None if context.standing is None else dataclasses.asdict(context.standing),
            "good": "none" if context.good is None else "another" if "good" in parts else "state",
        }
    places = {id(chunk): i for i, chunk in enumerate(learner.contexts[learner.current].store.chunks)}
    info["newest"] = []
    for i, (record, chunks) in enumerate(learner.newest):
        arrays |= _prefixed(f"newest.{i}.", record.arrays())
        info["newest"].append([places[id(chunk)] for chunk in chunks if id(chunk) in places])
    return arrays, info


def restore_snapshot(learner: WorkLearner, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
    """Put a learner that has just been made where another one of the same run was.

    `KeyError`, `ValueError` or `UserError` where the arrays are not those of such a learner; it is then as it was.
    """
    template = learner.contexts[learner.current].state
    contexts = {
        int(number): _context(learner, template, _under(f"contexts.{number}.", arrays), about)
        for number, about in info["contexts"].items()
    }
    counters = {name: int(info[name]) for name in _COUNTERS}
    stored = contexts[counters["current"]].store.chunks
    newest = [
        (EpisodeRecord.from_arrays(_under(f"newest.{i}.", arrays)), [stored[place] for place in places])
        for i, places in enumerate(info["newest"])
    ]
    for name, value in counters.items():
        setattr(learner, name, value)
    learner.contexts, learner.newest = contexts, newest[-learner.work.blocks :]
    for context in contexts.values():
        context.store.forget()  # where less is remembered than before


def _context(learner: WorkLearner, template: LearnerState, arrays: Arrays, about: Mapping[str, Any]) -> Context:
    state = from_arrays(template, _under("state.", arrays))
    good = {"none": None, "state": state}.get(about["good"])
    if about["good"] == "another":
        judged = from_arrays(_judged_parts(template), _under("good.", arrays))
        good = dataclasses.replace(state, **judged)
    store = ChunkStore(learner.task.spec, capacity=learner.work.chunks, recent=learner.work.recent_chunks)
    store.chunks = _chunks(_under("chunks.", arrays))
    standing = None if about["standing"] is None else Standing(**about["standing"])
    plain = {name: about[name] for name in _ABOUT_CONTEXT}
    return Context(state, store, good=good, standing=standing, **plain)


def _judged_parts(state: LearnerState) -> dict[str, Any]:
    """What a policy that is worse is replaced with."""
    return {"policy": state.policy, "record": state.record}


def _chunk_arrays(store: ChunkStore) -> Arrays:
    chunks = store.chunks
    if not chunks:
        return {}
    arrays = {name: np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in _PER_ROW}
    features = np.stack([chunk.features for chunk in chunks])
    return {**arrays, "rows": np.asarray([len(chunk.states) for chunk in chunks]), "features": features}


def _chunks(arrays: Arrays) -> list[Chunk]:
    if not arrays:
        return []
    ends = np.cumsum(arrays["rows"])[:-1]
    parts = [np.split(arrays[name], ends) for name in _PER_ROW]
    return [Chunk(*each) for each in zip(*parts, arrays["features"], strict=True)]


def _prefixed(prefix: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    return {prefix + name: array for name, array in arrays.items()}


def _under(prefix: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
