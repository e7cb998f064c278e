"""A pretend trainer that is run in processes of its own, to be killed. It imports no JAX, so it starts fast.

python writer.py train FOLDER EPISODES       prints each episode once its checkpoint is durable
python writer.py crash-everywhere FOLDER     dies once before each step that touches the disk
"""

import hashlib
import os
import random
import shutil
import sys
from pathlib import Path

import numpy as np

from firsthand.runs import RunFolder

CONFIG = {"seed": 1, "learner": {"eta": 0.5}}
PROVENANCE = {"started_utc": "2026-01-01T00:00:00+00:00"}
CRASHED = 17


def initial_state() -> dict[str, np.ndarray]:
    return {"weights": np.zeros(64), "key": np.zeros(32, np.uint8)}


def next_state(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Depends on every bit of the state before, so that a wrong resume shows."""
    digest = hashlib.sha256(b"".join(state[name].tobytes() for name in sorted(state))).digest()
    key = np.frombuffer(digest, np.uint8)
    return {"weights": state["weights"] * 0.9 + np.resize(key, 64), "key": key}


_STATES = [initial_state()]


def state_after(episode: int) -> dict[str, np.ndarray]:
    while len(_STATES) <= episode:
        _STATES.append(next_state(_STATES[-1]))
    return _STATES[episode]


def train(path: Path, episodes: int, *, report=lambda episode: None) -> None:
    """Create or resume the run, and do the episodes that are left."""
    if (path / "config.json").exists():
        run = RunFolder.open(path, writer=True)
        run.check_same_config(CONFIG)
    else:
        run = RunFolder.create(path, CONFIG, provenance=PROVENANCE)
    with run:
        done, state = 0, initial_state()
        if run.checkpoints():
            done, state, _, notes = run.load_checkpoint()
            assert notes == []
        run.rewind(done)
        for episode in range(done + 1, episodes + 1):
            state = next_state(state)
            run.save_episode(episode, {"weights": state["weights"]}, {"episode": episode})
            run.append_metrics({"episode": episode, "loss": float(state["weights"].sum())})
            if episode % 2 == 0:
                run.save_best({"weights": state["weights"]}, {"episode": episode})
            run.save_checkpoint(episode, state, {"episode": episode}, keep=2)
            report(episode)


def check(path: Path, *, at_least: int = 0) -> int:
    """What must hold after a crash at any instant. Returns the episode to go on from."""
    if not (path / "config.json").exists():
        assert at_least == 0
        return 0
    run = RunFolder.open(path)
    done = 0
    if run.checkpoints():
        done, arrays, info, notes = run.load_checkpoint()
        assert notes == []
        assert info == {"episode": done}
        expected = state_after(done)
        assert all(np.array_equal(arrays[name], expected[name]) for name in expected)
    assert done >= at_least
    assert run.episodes() in (list(range(1, done + 1)), list(range(1, done + 2)))
    for episode in run.episodes():
        arrays, info = run.load_episode(episode)
        assert info == {"episode": episode}
        assert np.array_equal(arrays["weights"], state_after(episode)["weights"])
    metrics = [line["episode"] for line in run.read_metrics()]
    assert metrics in (list(range(1, done + 1)), list(range(1, done + 2)))
    best = run.load_best()
    if best is not None:
        arrays, info = best
        assert np.array_equal(arrays["weights"], state_after(info["episode"])["weights"])
    else:
        assert done < 2
    return done


def contents(path: Path) -> dict[str, bytes]:
    """Every file by name, but for what may differ.

    The lock names a process. A crash right after a checkpoint leaves an old one until the next is saved.
    """
    files = {file for file in path.rglob("*") if file.is_file() and file.name != "lock"}
    files -= set(sorted(path.glob("checkpoints/*.safetensors"))[:-2])
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def die_before_step(number: int) -> None:
    """End this process, without any clean-up, before its `number`-th step that touches the disk."""
    steps = 0

    def wrap(name: str) -> None:
        original = getattr(os, name)

        def step(*arguments, **options):
            nonlocal steps
            steps += 1
            if steps == number:
                if name == "write":
                    handle, data = arguments
                    original(handle, bytes(data)[: len(data) // 2])
                os._exit(CRASHED)
            return original(*arguments, **options)

        setattr(os, name, step)

    for name in ("open", "write", "fsync", "replace", "ftruncate", "unlink", "mkdir"):
        wrap(name)


def crashes(path: Path, episodes: int, step: int) -> bool:
    """Train in a fork that dies before `step`; False when it was done before that."""
    child = os.fork()
    if child == 0:
        die_before_step(step)
        train(path, episodes)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, CRASHED), code
    return code == CRASHED


def crash_everywhere(folder: Path, episodes: int = 4) -> int:
    """Crash at each step, then once more at some step of the resume, then finish and compare with no crash."""
    train(folder / "whole", episodes)
    whole = contents(folder / "whole")
    chance = random.Random(0)
    step = 0
    while True:
        step += 1
        path = folder / "crashed"
        crashed = crashes(path, episodes, step)
        done = check(path)
        crashes(path, episodes, chance.randint(1, 40))
        check(path, at_least=done)
        train(path, episodes)
        assert check(path) == episodes
        assert contents(path) == whole, f"step {step}"
        shutil.rmtree(path)
        if not crashed:
            return step - 1


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["train", folder, episodes]:
            print("ready", flush=True)
            train(Path(folder), int(episodes), report=lambda episode: print(episode, flush=True))
        case ["crash-everywhere", folder]:
            print(crash_everywhere(Path(folder)))
        case other:
            sys.exit(f"what is {other}?")
