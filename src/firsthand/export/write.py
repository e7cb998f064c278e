"""`write_export`: a run's policy, or its log, in one of the formats."""

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from firsthand_onboard.policy import Layer, policy_to_bytes

from ..errors import UserError, suggest
from ..robots.gymnasium import GymnasiumTask
from ..robots.registry import find_robot
from ..robots.user_file import short_name, simulator_file
from ..runs import atomic
from ..simulators import StoredSimulator
from ..training.restore import RestoredRun
from .c_source import c_files, identifier
from .card import ModelCard
from .onnx_graph import onnx_model
from .robot_log import mcap_log

Files = dict[str, bytes]


def _c(restored: RestoredRun, layers: list[Layer], card: ModelCard) -> Files:
    return {name: text.encode() for name, text in c_files(restored.task.spec, layers, card).items()}


def _onnx(restored: RestoredRun, layers: list[Layer], card: ModelCard) -> Files:
    return {f"{identifier(card.robot)}_policy.onnx": onnx_model(restored.task.spec, layers, card)}


def _safetensors(restored: RestoredRun, layers: list[Layer], card: ModelCard) -> Files:
    return {f"{identifier(card.robot)}_policy.safetensors": policy_to_bytes(restored.task.spec, layers)}


POLICY_FORMATS: dict[str, Callable[[RestoredRun, list[Layer], ModelCard], Files]] = {
    "c": _c,
    "onnx": _onnx,
    "safetensors": _safetensors,
}
FORMATS = (*POLICY_FORMATS, "mcap")


def write_export(path: Path, kind: str, out: Path | None = None, episode: int | None = None) -> list[Path]:
    """Write the kept policy of a run, or that of an episode, to a folder; `mcap` writes what the robot did.

    Returns what was written. Without `out` the folder is `export` in the run's own.
    """
    if kind not in FORMATS:
        raise UserError(f"There is no format {kind!r}{suggest(kind, FORMATS)}; known are {', '.join(FORMATS)}.")
    restored = RestoredRun.open(path)
    folder = out or restored.folder.path / "export"
    if kind == "mcap":
        if episode is not None:
            raise UserError("--episode is for policies; --format mcap writes all episodes.")
        if not restored.episodes():
            raise UserError(f"{restored.folder.path} has no finished episode yet.")
        files = {f"{identifier(restored.task.name)}.mcap": mcap_log(restored)}
    else:
        layers, card = policy_and_card(restored, episode)
        files = POLICY_FORMATS[kind](restored, layers, card)
        # A card per format: the folder may hold another episode's policy in another one.
        text = "# Model card\n\n" + "".join(f"- {line}\n" for line in card.lines())
        files[f"{identifier(card.robot)}_policy.{kind}.md"] = text.encode()
    _write_all(folder, files)
    return [folder / name for name in files]


def _write_all(folder: Path, files: Files) -> None:
    """All files or none: every one is on the disk before the first takes its name."""
    staged = folder / f".{secrets.token_hex(4)}.tmp"
    atomic.make_folder(staged)
    try:
        for name, data in files.items():
            atomic.write_bytes(staged / name, data)
        for name in files:
            os.replace(staged / name, folder / name)
        atomic.sync(folder)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {atomic.cause(error)}.") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def policy_and_card(restored: RestoredRun, episode: int | None) -> tuple[list[Layer], ModelCard]:
    """The weights, and what is known about them."""
    ran = restored.kept_episode() if episode is None else episode
    policy, robot = restored.policy(episode), restored.config.robot
    errors = {row["episode"]: row["tracking_error"] for row in restored.metrics()}
    card = ModelCard.of(
        restored.task.spec,
        policy.layers,
        run=restored.folder.path.name,
        episode=ran or 0,
        tracking_error=errors.get(ran),
        unit=restored.task.unit,
        learned_on=f"the learned simulator {short_name(robot)}" if simulator_file(robot) else short_name(robot),
        angles=_angles(robot),
    )
    return list(policy.layers), card


def _angles(robot: str) -> tuple[int, ...]:
    """Entries of the measurement that training counts on across ±π; a learned simulator has those of its robot."""
    source = find_robot(robot)
    while isinstance(source, StoredSimulator):
        source = find_robot(source.robot)
    return tuple(source.angles) if isinstance(source, GymnasiumTask) else ()
