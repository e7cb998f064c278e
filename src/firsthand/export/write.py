"""`write_export`: a run's policy, or its log, in one of the formats."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from firsthand_onboard import SerialChain, SpecError
from firsthand_onboard.base_control import ForeignBase
from firsthand_onboard.policy_file import policy_to_bytes
from firsthand_onboard.signing import SUFFIX, SigningKey

from ..errors import UserError, suggest
from ..models import Controller
from ..robots.user_file import short_name
from ..runs import atomic
from ..training.run import Run
from .c_source import c_files, identifier
from .card import ModelCard
from .lerobot import lerobot_files
from .onnx_graph import observer_model, onnx_model
from .robot_log import foxglove_layout, mcap_log
from .ros2_control import ros2_control_files

Files = dict[str, bytes]


def _c(controller: Controller, card: ModelCard) -> Files:
    files = c_files(controller.spec, controller.policy.layers, card, controller.observer, controller.policy.control)
    return {name: text.encode() for name, text in files.items()}


def _onnx(controller: Controller, card: ModelCard) -> Files:
    name, spec, observer = identifier(card.robot), controller.spec, controller.observer
    files = {f"{name}_policy.onnx": onnx_model(spec, controller.policy.layers, card)}
    if observer is not None:
        files[f"{name}_observer.onnx"] = observer_model(spec, observer, card)
    return files


def _safetensors(controller: Controller, card: ModelCard) -> Files:
    data = policy_to_bytes(controller.spec, controller.policy.layers, controller.observer, controller.policy.control)
    return {f"{identifier(card.robot)}_policy.safetensors": data}


def _ros2_control(controller: Controller, card: ModelCard) -> Files:
    files = ros2_control_files(
        controller.spec, controller.policy.layers, card, controller.observer, controller.policy.control
    )
    return {name: text.encode() for name, text in files.items()}


POLICY_FORMATS: dict[str, Callable[[Controller, ModelCard], Files]] = {
    "c": _c,
    "onnx": _onnx,
    "safetensors": _safetensors,
    "ros2_control": _ros2_control,
}


def _mcap(run: Run) -> Files:
    name = identifier(run.description.name)
    return {f"{name}.mcap": mcap_log(run), f"{name}.foxglove.json": foxglove_layout(run.description.spec)}


def _lerobot(run: Run) -> Files:
    folder = f"{identifier(run.description.name)}_lerobot"
    return {f"{folder}/{name}": data for name, data in lerobot_files(run).items()}


LOG_FORMATS: dict[str, Callable[[Run], Files]] = {"mcap": _mcap, "lerobot": _lerobot}
"""What the robot did, not what it learned."""
FORMATS = (*POLICY_FORMATS, *LOG_FORMATS)


def write_export(
    path: Path,
    kind: str,
    out: Path | None = None,
    episode: int | None = None,
    *,
    needs_observer: bool = False,
    sign: Path | None = None,
) -> list[Path]:
    """Write the kept policy of a run, or that of an episode, to a folder, or what the robot did (`mcap`, `lerobot`).

    A policy that ran with an observer leaves with it; `needs_observer` refuses one that was not. With `sign`, a private
    key (see `firsthand_onboard.signing`), every file has its signature beside it. Returns what was written. Without
    `out` the folder is `export` in the run's own.
    """
    if kind not in FORMATS:
        raise UserError(f"There is no format {kind!r}{suggest(kind, FORMATS)}; known are {', '.join(FORMATS)}.")
    try:
        key = None if sign is None else SigningKey(sign)
    except SpecError as error:
        raise UserError(f"{error}.") from error
    run = Run.open(path)
    folder = out or run.path / "export"
    if kind in LOG_FORMATS:
        if episode is not None:
            raise UserError(f"--episode is for policies; --format {kind} writes all episodes.")
        if needs_observer:
            raise UserError(f"--observer is for policies; --format {kind} writes what the robot did.")
        if not run.episodes():
            raise UserError(f"{run.path} has no finished episode yet.")
        files, obsolete = LOG_FORMATS[kind](run), set()
    else:
        with atomic.using(f"the policy of {run.path}"):
            controller, card = controller_and_card(run, episode)
        if needs_observer and controller.observer is None:
            raise UserError(f"the policy of episode {card.episode} of {run.path} ran without an observer.")
        check_base_export(controller, kind, run)
        with atomic.using(f"the policy of {run.path}"):
            files = POLICY_FORMATS[kind](controller, card)
        # Of an earlier policy, which had an observer.
        obsolete = {f"{identifier(card.robot)}_observer.onnx"} - set(files) if kind == "onnx" else set()
        # A card per format: the folder may hold another episode's policy in another one.
        text = "# Model card\n\n" + "".join(f"- {line}\n" for line in card.lines())
        files[f"{identifier(card.robot)}_policy.{kind}.md"] = text.encode()
    if key is None:
        obsolete |= {f"{name}{SUFFIX}" for name in files}  # of what these files were before
    else:
        files |= {f"{name}{SUFFIX}": key.sign(data) for name, data in files.items()}
    if out is None:
        atomic.make_own_folder(folder)
    _write_all(folder, files, obsolete)
    return [folder / name for name in files]


BASE_FORMATS = ("c", "ros2_control", "safetensors")
"""Formats that hold a base."""


def check_base_export(controller: Controller, kind: str, run: Run) -> None:
    """Raise `UserError` for a base that the format cannot hold: a policy without its base is another controller."""
    control = controller.policy.control
    if control is None:
        return
    if isinstance(control.base, ForeignBase):
        raise UserError(
            f"the policy of {run.path} runs on top of a function in a file of yours, which no export holds; use it "
            "from Python."
        )
    if kind in ("c", "ros2_control") and isinstance(controller.spec.kinematics, SerialChain):
        raise UserError(f"the policy of {run.path} runs on top of a base, which C has for planar robots only.")
    if kind not in BASE_FORMATS:
        raise UserError(
            f"the policy of {run.path} runs on top of a base, which the format {kind} does not hold; export it as "
            f"{' or '.join(BASE_FORMATS)}."
        )


def _write_all(folder: Path, files: Files, obsolete: Iterable[str]) -> None:
    """All files or none: every one is on the disk before the first takes its name. Then obsolete ones go."""
    staged = folder / f".{secrets.token_hex(4)}.tmp"
    atomic.make_folder(staged)
    try:
        for name, data in files.items():
            atomic.make_folder((staged / name).parent)
            atomic.write_bytes(staged / name, data)
        for name in files:
            for parent in reversed(Path(name).parents[:-1]):
                atomic.make_own_folder(folder / parent)
            os.replace(staged / name, folder / name)
        for name in obsolete:
            (folder / name).unlink(missing_ok=True)
        atomic.sync(folder)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {atomic.cause(error)}.") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def controller_and_card(run: Run, episode: int | None) -> tuple[Controller, ModelCard]:
    """Policy and observer, and what is known about them."""
    ran = run.kept_episode() if episode is None else episode
    controller = run.kept_policy() if episode is None else run.policy(episode)
    name, control = short_name(run.config.robot), controller.policy.control
    if control is not None and isinstance(control.base, ForeignBase):
        control = None  # it is not exported either: see `check_base_export`
    rows = {row["episode"]: row for row in run.metrics()}
    reached = rows.get(ran, {})
    card = ModelCard.of(
        run.description.spec,
        controller.policy.layers,
        run=run.path.name,
        episode=ran or 0,
        tracking_error=reached.get("tracking_error"),
        cost=None if run.description.tracks else reached.get("cost"),
        unit=run.description.unit,
        learned_on=f"the learned simulator {name}" if run.description.kind == "learned simulator" else name,
        angles=run.description.angles,
        observer=controller.observer,
        control=control,
    )
    return controller, card
