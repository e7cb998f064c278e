"""Robots from the user's own file: `my_robot.py:task` on the command line."""

import hashlib
import inspect
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from firsthand_onboard.spec import SpecError

from ..errors import UserError, how_to_install, suggest
from ..runs import atomic
from . import siblings
from .address import full_name, is_address
from .approval import approve, require_approval
from .description import RobotFile
from .source import RobotSource

SUFFIX = ".py"
EXTRA = "gymnasium"
"""The optional part of firsthand that the modules below belong to."""
EXTRA_MODULES = ("gymnasium", "mujoco", "imageio")


def is_robot_file(name: str) -> bool:
    """Whether a name on the command line means a file and something in it."""
    return name.endswith(SUFFIX) or name.rpartition(":")[0].endswith(SUFFIX)


def split(name: str) -> tuple[Path, str]:
    """The file, made absolute, and the attribute in it; the attribute is empty where none is named."""
    path, _, attribute = name.rpartition(":") if not name.endswith(SUFFIX) else (name, "", "")
    return _absolute(path), attribute


def _absolute(path: str) -> Path:
    """From the root, with `~` as the home folder."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:
        raise UserError(f"{path} cannot be found, because there is no home folder {Path(path).parts[0]}.") from None


def absolute_name(name: str) -> str:
    """The same robot, named so that it is found from every working directory; other names are left alone."""
    if simulator_file(name):
        return str(_absolute(name))
    if is_address(name):
        robot, _, address = full_name(name).rpartition("@")
        return f"{absolute_name(robot)}@{address}"
    if name.endswith(".toml"):
        return str(_absolute(name))
    if not is_robot_file(name):
        return name
    path, attribute = split(name)
    return f"{path}:{attribute}" if attribute else str(path)


def short_name(name: str) -> str:
    """`my_robot-task` for a robot file, fit for a folder's name; a built-in robot's name with what follows it."""
    if is_address(name):
        return f"{short_name(name.rpartition('@')[0]) or 'robot'}-remote"
    if is_robot_file(name) and not simulator_file(name):
        path, attribute = split(name)
        return f"{path.stem}-{attribute}" if attribute else path.stem
    if Path(name).is_absolute() or simulator_file(name):
        return _absolute(name).name
    return name.replace(" ", "").replace(":", "-").replace(",", "-") if ":" in name else name


def name_for_titles(name: str) -> str:
    """`my_robot.py:task` for a robot file wherever it lies; any other name as it is."""
    if is_address(name) or simulator_file(name) or not is_robot_file(name):
        return name
    path, attribute = split(name)
    return f"{path.name}:{attribute}" if attribute else path.name


def robot_file(name: str) -> RobotFile | None:
    """The file that a name means, as it is now; None for a robot that is in none."""
    if is_address(name):
        return robot_file(name.rpartition("@")[0])
    path = simulator_file(name)
    if path is None and not is_robot_file(name):
        return None
    path = path or split(name)[0]
    return RobotFile(str(path), hashlib.sha256(_read(path)).hexdigest())


def approve_robot(name: str) -> None:
    """The user has named this robot: its file may be run as it is now, also when a run names it later.

    A learned simulator is data. The robot that it imitates was not named, and its file needs a permission of its own.
    """
    robot = name.rpartition("@")[0] if is_address(name) else name
    if is_robot_file(robot) and not simulator_file(robot):
        file = robot_file(robot)
        assert file is not None
        approve(Path(file.path), file.sha256)
        siblings.trust(Path(file.path))


def simulator_file(name: str) -> Path | None:
    """The description of a learned simulator, if the name is its folder."""
    path = _absolute(name) / "simulator.json"
    try:
        return path if path.is_file() else None
    except OSError:  # a folder that may not be read, or a name that cannot be one
        return None


def robot_file_notes(before: RobotFile | None, now: RobotFile | None) -> list[str]:
    """What has happened to a robot's file since the run was started."""
    if before is None or now is None:
        return []
    notes = []
    if now.path != before.path:
        notes.append(f"The robot of this run was in {before.path}; using {now.path}.")
    if now.sha256 != before.sha256 and Path(now.path).name != Path(before.path).name:
        notes.append(f"{now.path} is another file than that of this run; going on with it.")
    elif now.sha256 != before.sha256:
        notes.append(f"{now.path} has changed since this run was started; going on with it as it is now.")
    return notes


def load_source(name: str) -> RobotSource:
    """The `RobotSource` that `my_robot.py:task` names: the attribute itself, or what it returns when it is called."""
    path, attribute = split(name)
    module = load_module(path)
    sources = tuple(n for n, value in vars(module).items() if not n.startswith("_") and _is_source(value))
    if not attribute:
        example = sources[0] if sources else "task"
        raise UserError(f"ROBOT is {name!r}, but must also name the robot in the file: {name}:{example}.")
    if not hasattr(module, attribute):
        known = tuple(n for n in vars(module) if not n.startswith("_"))
        raise UserError(f"{path} has no {attribute!r}{suggest(attribute, sources) or suggest(attribute, known)}.")
    value = getattr(module, attribute)
    if inspect.isfunction(value):
        try:
            value = value()
        except (Exception, SystemExit) as error:
            raise UserError(f"{path}: {attribute}() failed{_where(error, path)}: {_why(error)}.") from error
    if not _is_source(value):
        raise UserError(
            f"{path}: {attribute} is {_a(type(value).__name__)}, but must be a robot (a GymnasiumTask, or anything "
            "with make_task and make_robot) or a function that returns one."
        )
    return value


def _is_source(value: Any) -> bool:
    return isinstance(value, RobotSource) and not inspect.isclass(value)


def _a(kind: str) -> str:
    return f"an {kind}" if kind[:1].lower() in "aeiou" else f"a {kind}"


_loaded: dict[tuple[str, str], ModuleType] = {}


def load_module(path: Path) -> ModuleType:
    """The file as a module. It is run once per content, and only if the user allows it. Modules beside it can be
    imported if the user allows them, too (`siblings`): these are the two places where a robot's code is run.
    """
    text = _read(path)
    key = (str(path), hashlib.sha256(text).hexdigest())
    require_approval(path, key[1])
    if key in _loaded:
        return _loaded[key]
    module = ModuleType(f"firsthand_robot_{path.stem}_{key[1][:12]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    siblings.add_folder(path)
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise UserError(f"{path} cannot be loaded as Python{_where(error, path)}: {_why(error)}.") from error
    _loaded[key] = module
    return module


def _read(path: Path) -> bytes:
    try:
        return atomic.read_bytes(path)
    except FileNotFoundError:
        raise UserError(f"There is no file {path}{suggest(path.name, _neighbours(path))}.") from None
    except OSError as error:
        raise UserError(f"cannot read the robot file {path}: {error.strerror}.") from None


def _neighbours(path: Path) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in path.parent.glob(f"*{SUFFIX}"))) if path.parent.is_dir() else ()


def _where(error: BaseException, path: Path) -> str:
    """`, line 12`: the last line of the user's file that the error passed through."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f", line {error.lineno}" if error.lineno else ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


def _why(error: BaseException) -> str:
    if isinstance(error, UserError | SpecError):
        return str(error).removesuffix(".")
    text = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split()).removesuffix(".")
    why = f"{type(error).__name__}: {text}" if text else type(error).__name__
    unknown = re.search(r"GymnasiumTask.* unexpected keyword argument '(\w+)'", text)
    if isinstance(error, TypeError) and unknown is not None:
        from .gymnasium import GymnasiumTask

        fields = tuple(GymnasiumTask.__dataclass_fields__)
        why = f"GymnasiumTask has no field {unknown[1]!r}{suggest(unknown[1], fields)}"
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRA_MODULES:
        why += f"; install it with: {how_to_install(EXTRA)}"
    return why
