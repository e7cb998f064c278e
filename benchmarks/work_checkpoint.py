"""How large the checkpoints of a work session are, and how long they take, with full memories of the excavator's work.

    python benchmarks/work_checkpoint.py

One row with one kind of conditions, one with twelve; also the size of a block. Times are the best of three.
"""

import dataclasses
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from firsthand.agent import LearnerState
from firsthand.robots import EpisodeRecord
from firsthand.runs import atomic, packed
from firsthand.tasks import Task, excavator_task
from firsthand.training import preset
from firsthand.training.work import WorkLearner
from firsthand.training.work.chunks import Chunk
from firsthand.training.work.snapshot import restore_snapshot, take_snapshot

BLOCK = 6
"""Trajectories in half a minute."""


def random_chunk(task: Task, rng: np.random.Generator) -> Chunk:
    """A chunk that differs from all others, so that nothing is packed smaller than it would be."""
    layout, rows = task.spec.layout, task.steps
    sizes = (layout.size, layout.num_commands, layout.num_measured)
    states, commands, following = (rng.normal(size=(rows, size)).astype(np.float32) for size in sizes)
    features = rng.normal(size=2 * (layout.num_measured + layout.num_commands))
    return Chunk(states, commands, following, np.ones(rows, bool), features)


def fill(learner: WorkLearner, rng: np.random.Generator) -> None:
    """Let the conditions in use remember all that they can, and another good policy."""
    context = learner.contexts[learner.current]
    context.store.chunks = [random_chunk(learner.task, rng) for _ in range(learner.work.chunks)]
    policy = jax.tree.map(lambda leaf: leaf + 1, context.state.policy)
    context.good = dataclasses.replace(context.state, policy=policy)


def new_learner(task: Task) -> WorkLearner:
    """A learner at the beginning of its work."""
    settings = preset("fast")
    state = LearnerState.random(task.spec, settings, seed=0)
    return WorkLearner(task, settings, state, block_trajectories=BLOCK)


def block_bytes(task: Task) -> int:
    """The size of a block's file."""
    spec, layout = task.spec, task.spec.layout
    sizes = (layout.size,), (task.steps + 1, layout.num_measured), (task.steps, layout.num_commands)
    starts, measured, commands = (np.zeros((BLOCK, *size)) for size in sizes)
    references = np.zeros((BLOCK, task.steps + spec.preview[-1], spec.num_outputs))
    return len(packed.pack(EpisodeRecord.complete(starts, measured, commands, references).arrays(), {}))


def main() -> None:
    """Print the rows."""
    task, rng = excavator_task(), np.random.default_rng(0)
    learner = new_learner(task)
    fill(learner, rng)
    print(f"a block: {block_bytes(task) / 1e6:.2f} MB")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        for kinds in (1, learner.work.contexts):
            while len(learner.contexts) < kinds:
                learner._begin(0)
                fill(learner, rng)
            writing, reading = [], []
            for _ in range(3):
                began = time.perf_counter()
                atomic.write_bytes(path, packed.pack(*take_snapshot(learner)))
                writing.append(time.perf_counter() - began)
                other, began = new_learner(task), time.perf_counter()
                restore_snapshot(other, *packed.unpack(path.read_bytes()))
                reading.append(time.perf_counter() - began)
            size = path.stat().st_size / 1e6
            print(f"{kinds} kinds: {size:.1f} MB, written in {min(writing):.2f} s, read in {min(reading):.2f} s")


if __name__ == "__main__":
    main()
