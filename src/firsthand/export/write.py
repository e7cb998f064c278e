"""`write_export`: a run's policy, or its log, in one of the formats."""

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from firsthand_onboard.policy import Layer
from firsthand_onboard.policy_file import policy_to_bytes

from ..errors import UserError, suggest
from ..robots.user_file import short_name
from ..runs import atomic
from ..training.run import Run
from .c_source import c_files, identifier
from .card import ModelCard
from .onnx_graph import onnx_model
from .robot_log import mcap_log

Files = dict[str, bytes]


def _c(run: Run, layers: list[Layer], card: ModelCard) -> Files:
    return {name: text.encode() for name, text in c_files(run.description.spec, layers, card).items()}


def _onnx(run: Run, layers: list[Layer], card: ModelCard) -> Files:
    return {f"{identifier(card.robot)}_policy.onnx": onnx_model(run.description.spec, layers, card)}


def _safetensors(run: Run, layers: list[Layer], card: ModelCard) -> Files:
    return {f"{identifier(card.robot)}_policy.safetensors": policy_to_bytes(run.description.spec, layers)}


POLICY_FORMATS: dict[str, Callable[[Run, list[Layer], ModelCard], Files]] = {
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
    run = Run.open(path)
    folder = out or run.path / "export"
    if kind == "mcap":
        if episode is not None:
            raise UserError("--episode is for policies; --format mcap writes all episodes.")
        if not run.episodes():
            raise UserError(f"{run.path} has no finished episode yet.")
        files = {f"{identifier(run.description.name)}.mcap": mcap_log(run)}
    else:
        layers, card = policy_and_card(run, episode)
        files = POLICY_FORMATS[kind](run, layers, card)
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


def policy_and_card(run: Run, episode: int | None) -> tuple[list[Layer], ModelCard]:
    """The weights, and what is known about them."""
    ran = run.kept_episode() if episode is None else episode
    policy = run.kept_policy() if episode is None else run.policy(episode)
    name = short_name(run.config.robot)
    errors = {row["episode"]: row["tracking_error"] for row in run.metrics()}
    card = ModelCard.of(
        run.description.spec,
        policy.layers,
        run=run.path.name,
        episode=ran or 0,
        tracking_error=errors.get(ran),
        unit=run.description.unit,
        learned_on=f"the learned simulator {name}" if run.description.kind == "learned simulator" else name,
        angles=run.description.angles,
    )
    return list(policy.layers), card
