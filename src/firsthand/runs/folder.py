"""`RunFolder`: the folder of one run.

    config.json         format version, configuration, provenance, SHA-256; written once
    metrics.jsonl       a line per episode, with a checksum
    episodes/000012.safetensors      what the robot did in episode 12; append-only
    checkpoints/000012.safetensors   the learner's whole state after episode 12; the newest few
    best.safetensors    the best policy so far
    evaluations/000012.safetensors   how the policy of episode 12 followed the evaluation references
    data/               what the run started from: logs, another run's weights; written once
    report/             figures and the HTML report
    work/               what a work session keeps: see `work_folder`
    lock                held by the process that writes

A trainer writes the episode, then its metrics line, then the checkpoint. The checkpoint is what makes an
episode count: resuming loads the newest good one and rewinds the rest to it.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from firsthand.errors import UserError
from firsthand.runs import atomic, packed
from firsthand.runs.atomic import MetricsFile, WriterLock
from firsthand.runs.checkpoints import Checkpoint as Checkpoint
from firsthand.runs.checkpoints import CheckpointFolder, stored_numbers
from firsthand.runs.packed import Arrays, DamagedFile

FORMAT = 2
MAX_CONFIG_BYTES = 64 << 20
_FOLDERS = ("episodes", "checkpoints", "report")
_ABSENT = object()


class RunFolder:
    """What one run leaves on disk. Make it with `create`, or `open`; use it in a `with`, or `close` it.

    Anyone may read while a writer writes. Writing needs the lock, which `create` and `open(writer=True)` take.
    All failures that a user can cause, a full disk among them, are `UserError`.
    """

    def __init__(
        self, path: Path, config: dict[str, Any], provenance: dict[str, Any], identity: str, lock: WriterLock
    ) -> None:
        self.path = path
        self.config = config
        self.provenance = provenance
        self.identity = identity
        """SHA-256 of config.json, which no other run has: `provenance.collect` puts a random number into it."""
        self._lock = lock
        self._metrics = MetricsFile(path / "metrics.jsonl")
        self._checkpoints = CheckpointFolder(path / "checkpoints")

    # Making, opening, closing.

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        config: Mapping[str, Any],
        *,
        provenance: Mapping[str, Any],
        data: Mapping[str, bytes] | None = None,
    ) -> "RunFolder":
        """Start a run in a folder that does not exist, is empty, or holds a run without a finished episode.

        Takes the writer's lock.
        ±∞ and NaN in `config` are stored as text that `float()` reads. `data` are files that the run starts from, by
        name; they are in place before the folder counts as a run.
        """
        path = Path(path)
        check_free(path)
        atomic.make_folder(path)
        lock = WriterLock(path / "lock")
        lock.acquire()
        try:
            # Again, now that no other process can get between these two lines.
            check_free(path)
            atomic.remove_temporary_files(path)
            atomic.remove(path / "config.json", durably=True)  # of a run whose start failed: see `_is_unused`
            for name in _FOLDERS:
                atomic.make_own_folder(path / name)
            if _holds_only_arrays(path / "data") and not (path / "data").is_symlink():
                atomic.remove(*sorted((path / "data").iterdir()))
            if data:
                atomic.make_own_folder(path / "data")
                for name, file in data.items():
                    atomic.write_bytes(path / "data" / name, file)
            content = {"format": FORMAT, "config": config, "provenance": provenance}
            # Last, because it is what makes the folder a run.
            atomic.write_signed_json(path / "config.json", content)
            return cls(path, *_read_config(path), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, writer: bool = False) -> "RunFolder":
        """Open a run for reading, or, with `writer`, for resuming; then no other process can write to it."""
        path = Path(path)
        config, provenance, identity = _read_config(path)
        lock = WriterLock(path / "lock")
        if writer:
            lock.acquire()
            try:
                atomic.remove_temporary_files(path)
                for name in _FOLDERS:
                    atomic.make_own_folder(path / name)
                    atomic.remove_temporary_files(path / name)
            except BaseException:
                lock.release()
                raise
        return cls(path, config, provenance, identity, lock)

    def close(self) -> None:
        """Release the lock. Reading goes on working."""
        self._lock.release()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def report_dir(self) -> Path:
        """Where the report goes."""
        return self.path / "report"

    def check_same_config(self, config: Mapping[str, Any], ignore: Sequence[str] = ("episodes",)) -> None:
        """Refuse to go on with a configuration that is not the one the run was started with.

        `ignore` lists dotted fields that may differ; naming a group ignores everything in it.
        """
        stored = dict(_fields(self.config))
        given = dict(_fields(packed.plain_values(config, nonfinite="text")))
        for name in [*given, *(name for name in stored if name not in given)]:
            if any(name == field or name.startswith(field + ".") for field in ignore):
                continue
            before, now = stored.get(name, _ABSENT), given.get(name, _ABSENT)
            if before is _ABSENT and name.startswith("settings."):
                raise UserError(
                    f"{self.path} was started by an earlier version of firsthand, which had no setting "
                    f"{name.removeprefix('settings.')}; resume it with that version, or start another run with another "
                    "--out."
                )
            # `1 == True` and `1 == 1.0` in Python; only the second pair means the same setting.
            if before != now or isinstance(before, bool) != isinstance(now, bool):
                raise UserError(
                    f"{self.path} was started with {name} = {_show(before)}, and now it is {_show(now)}; "
                    "resume with the same value, or start another run with another --out."
                )

    # Metrics.

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add an episode's line to metrics.jsonl, durably. ±∞ and NaN are stored as null."""
        self._require_lock()
        self._metrics.append(metrics)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, oldest first, without one that is still being written or was torn."""
        return self._metrics.read()

    def truncate_metrics(self, after_episode: int) -> None:
        """Drop the lines of episodes later than this one, and a torn last line, atomically."""
        self._require_lock()
        self._metrics.truncate(after_episode)

    # Episodes.

    def save_episode(self, episode: int, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        """Store what the robot did. A stored episode is never changed."""
        self._require_lock()
        path = self._episode_path(episode)
        if path.exists():
            raise FileExistsError(f"{path} is stored already; rewind the run before doing the episode again")
        atomic.write_bytes(path, packed.pack(arrays, info))

    def load_episode(self, episode: int) -> tuple[Arrays, dict[str, Any]]:
        """The arrays and the info of one episode."""
        path = self._episode_path(episode)
        found = _read_arrays(path)
        if found is None:
            raise UserError(f"{self.path} has no episode {episode}: {path} does not exist.")
        return found

    def episodes(self) -> list[int]:
        """The numbers of the stored episodes, in order."""
        return stored_numbers(self.path / "episodes")

    def drop_episodes(self, after: int) -> None:
        """Remove the episodes later than this one, so that they can be done again."""
        self._require_lock()
        self._drop("episodes", after)

    # Checkpoints.

    def save_checkpoint(
        self, episode: int, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any], *, keep: int = 3
    ) -> None:
        """Store the learner's state after an episode, then remove all but the newest `keep` checkpoints.

        The new one is durable before an old one goes. The newest must stay the newest, so after going back to
        an earlier one the later ones have to be dropped first: see `rewind`.
        """
        self._require_lock()
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        before = self.checkpoints()
        if before and before[-1] > episode:
            raise ValueError(f"checkpoint {before[-1]} is newer than {episode}; rewind the run first")
        self._checkpoints.save(episode, arrays, info, keep=keep)

    def checkpoints(self) -> list[int]:
        """The numbers of the stored checkpoints, in order, good or not.

        Empty when the run was stopped before its first one; then it has to start from the beginning.
        """
        return self._checkpoints.numbers()

    def load_checkpoint(self, episode: int | None = None) -> Checkpoint:
        """The newest checkpoint whose SHA-256 is right, or that of one episode.

        Damaged ones are skipped, with a sentence each in `notes`.
        """
        if episode is not None and episode not in self.checkpoints():
            kept = ", ".join(map(str, self.checkpoints())) or "none"
            raise UserError(f"{self.path} has no checkpoint of episode {episode}; it has {kept}.")
        found = self._checkpoints.load(episode)
        if found is None:
            raise UserError(f"{self.path} has no checkpoint: it was stopped before its first episode was done.")
        return found

    def rewind(self, episode: int) -> None:
        """Make the folder what it was right after this episode's checkpoint; -1 for the very beginning.

        Resuming calls this with the checkpoint it loaded. It can be interrupted and called again: a checkpoint
        goes before the episodes it stands for, and the newest goes first.
        """
        self._require_lock()
        self._drop("checkpoints", episode)
        self._drop("evaluations", episode)
        self.truncate_metrics(episode)
        self.drop_episodes(episode)

    # Evaluations.

    def save_evaluation(self, episode: int, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        """Store how the policy of an episode followed the evaluation references, in place of what was stored before.

        Needs no lock: a finished run is evaluated again, and a run that goes on may be.
        """
        atomic.make_own_folder(self.path / "evaluations")
        atomic.write_bytes(self._evaluation_path(episode), packed.pack(arrays, info))

    def load_evaluation(self, episode: int) -> tuple[Arrays, dict[str, Any]] | None:
        """The arrays and the info of a stored evaluation; None where the policy of this episode has none."""
        return _read_arrays(self._evaluation_path(episode))

    # What the run started from.

    def load_data(self, name: str) -> tuple[Arrays, dict[str, Any]]:
        """The arrays and the info of one file under `data/`."""
        path = self.path / "data" / name
        try:
            return packed.unpack(atomic.read_bytes(path))
        except OSError as error:
            raise UserError(f"cannot read {path}, which the run started from: {atomic.cause(error)}.") from error
        except DamagedFile as error:
            raise UserError(f"{path}, which the run started from, is damaged: {error}.") from error

    # The best policy.

    def save_best(self, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        """Replace the best policy so far."""
        self._require_lock()
        atomic.write_bytes(self._best_path, packed.pack(arrays, info))

    def drop_best(self) -> None:
        """Forget the best policy."""
        self._require_lock()
        atomic.remove(self._best_path, durably=True)

    def load_best(self) -> tuple[Arrays, dict[str, Any]] | None:
        """The best policy so far; None when there is none yet."""
        return _read_arrays(self._best_path)

    # Inside.

    @property
    def _best_path(self) -> Path:
        return self.path / "best.safetensors"

    def _episode_path(self, episode: int) -> Path:
        return self.path / "episodes" / f"{episode:06d}.safetensors"

    def _evaluation_path(self, episode: int) -> Path:
        return self.path / "evaluations" / f"{episode:06d}.safetensors"

    def _drop(self, kind: str, after: int) -> None:
        later = [number for number in stored_numbers(self.path / kind) if number > after]
        paths = [self.path / kind / f"{number:06d}.safetensors" for number in reversed(later)]
        atomic.remove(*paths, durably=True)

    def _require_lock(self) -> None:
        if not self._lock.held:
            raise RuntimeError(f"{self.path} is open for reading; open it with writer=True to write")


def check_free(path: Path) -> None:
    """Refuse a place where a new run would mix with something else."""
    try:
        if path.is_file():
            raise UserError(f"{path} is a file; give another --out.")
        if (path / "config.json").exists() and not _is_unused(path):
            raise UserError(f"{path} already holds a run{_started_text(path)}; add --resume, or give another --out.")
        if path.is_dir() and not (path / "config.json").exists() and not _is_unborn(path):
            raise UserError(f"{path} is not empty and holds no run; give another --out.")
    except OSError as error:
        raise UserError(f"cannot read the folder {path}: {atomic.cause(error)}.") from error


def _is_unused(path: Path) -> bool:
    """Whether a folder holds a run without a single finished episode: its start failed, and nothing is lost."""
    try:
        _read_config(path)
    except UserError:
        return False
    metrics = path / "metrics.jsonl"
    if metrics.exists() and metrics.stat().st_size:
        return False
    return not any(stored_numbers(path / name) for name in ("episodes", "checkpoints", "evaluations")) and not any(
        entry.name.startswith("best") for entry in path.iterdir()
    )


def _is_unborn(path: Path) -> bool:
    """Whether a folder holds nothing, or only what `create` makes before config.json: it was killed there."""
    for entry in path.iterdir():
        leftover = entry.name == "lock" or atomic.is_temporary(entry.name)
        empty_folder = entry.name in _FOLDERS and entry.is_dir() and not any(entry.iterdir())
        started_from = entry.name == "data" and (path / "lock").exists() and _holds_only_arrays(entry)
        if not (leftover or empty_folder or started_from):
            return False
    return True


def _holds_only_arrays(folder: Path) -> bool:
    return folder.is_dir() and all(
        entry.suffix == ".safetensors" or atomic.is_temporary(entry.name) for entry in folder.iterdir()
    )


def _started_text(path: Path) -> str:
    try:
        return f" (started {_read_config(path)[1]['started_utc']})"
    except (UserError, KeyError):
        return ""


def _read_config(path: Path) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The configuration and the provenance of the run in `path`, and the SHA-256 of the file that holds them."""
    file = path / "config.json"
    try:
        if path.is_file():
            raise UserError(f"{path} is a file, not the folder of a run.")
        if not path.exists():
            raise UserError(f"{path} does not exist.")
        data = atomic.read_bytes(file, MAX_CONFIG_BYTES)
        content = json.loads(data)
    except FileNotFoundError as error:
        raise UserError(f"{path} is not a run: it has no config.json.") from error
    except OSError as error:
        raise UserError(f"cannot read {file}: {atomic.cause(error)}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is damaged: it is not JSON.") from error
    if not isinstance(content, dict) or "format" not in content:
        raise UserError(f"{path} is not a run: its config.json has no field 'format'.")
    if content["format"] != FORMAT:
        raise UserError(
            f"{file} has the format {content['format']!r}, and this version of firsthand reads {FORMAT}; "
            "use the version that wrote it."
        )
    try:
        packed.check_json(data, content)
    except packed.WrongChecksum as error:
        raise UserError(
            f"{file} is damaged or was changed: {error}; take it from a copy of the run, or, if you have changed it "
            "yourself, remove its field sha256."
        ) from None
    if unknown := sorted(set(content) - {"format", "config", "provenance", packed.FIELD}):
        raise UserError(f"{file} is damaged: it has the unknown field {unknown[0][:40]!r}.")
    config, provenance = content.get("config"), content.get("provenance")
    if not isinstance(config, dict) or not isinstance(provenance, dict):
        raise UserError(f"{file} is damaged: 'config' and 'provenance' must be objects.")
    return config, provenance, hashlib.sha256(data).hexdigest()


def _read_arrays(path: Path) -> tuple[Arrays, dict[str, Any]] | None:
    """The arrays and the info of a file; None where it does not exist, `UserError` where it cannot be used."""
    try:
        return packed.unpack(atomic.read_bytes(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read {path}: {atomic.cause(error)}.") from error
    except DamagedFile as error:
        raise UserError(f"{path} is damaged: {error}.") from error


def _fields(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dictionaries with their dotted names. Lists count as one value."""
    if isinstance(value, dict) and (value or not prefix):
        for key, item in value.items():
            yield from _fields(item, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, value


def _show(value: Any) -> str:
    """A value of a configuration for people: what is null there was not given."""
    return "(not given)" if value is _ABSENT or value is None else json.dumps(value)
