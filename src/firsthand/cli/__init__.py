"""The command line: `firsthand COMMAND`, a module here for each."""

import io
import os
import sys
from typing import Any

import tyro

from .. import __version__
from ..cache import cache_folder
from ..errors import UserError, suggest
from .characterize import Characterize
from .check import Check
from .dashboard import Dashboard
from .evaluate import Evaluate
from .export import Export
from .inspect import Inspect
from .laboratory import check_laboratory, laboratory_commands, laboratory_hint
from .machine import Machine
from .new import New
from .options import check_options, check_whole_numbers
from .report import Report
from .simulator import Simulator
from .train import Train

COMMANDS = {
    "new": New,
    "check": Check,
    "train": Train,
    "evaluate": Evaluate,
    "report": Report,
    "export": Export,
    "dashboard": Dashboard,
    "characterize": Characterize,
    "inspect": Inspect,
    "machine": Machine,
    "simulator": Simulator,
}

DESCRIPTION = "Train a robot's controller on the robot itself. (firsthand --version prints the version.)"
WRONG_INPUT = 2
INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run one command. A mistake of the user's ends with one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Greek letters shall not end a training run
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(__version__)
        sys.exit(0)
    try:
        command = parse_command(arguments)
        _use_compilation_cache()
        sys.exit(command.run())
    except UserError as error:
        print(f"firsthand: {error}", file=sys.stderr)
        sys.exit(WRONG_INPUT)
    except KeyboardInterrupt:
        print("firsthand: interrupted.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of our output went away, as in `firsthand … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if not _out_of_memory(error):
            raise
        what = "there is not enough memory for this; ask for less, for example fewer --episodes"
        print(f"firsthand: {what}.", file=sys.stderr)
        sys.exit(WRONG_INPUT)


def parse_command(arguments: list[str]) -> Any:
    """The command that these arguments ask for; `run` carries it out. An unknown option exits with code 2."""
    check_laboratory(arguments)
    check_options(arguments)
    check_whole_numbers(arguments)
    commands = COMMANDS | laboratory_commands()
    known = ", ".join(commands)
    if not arguments:
        raise UserError(f"no command was given; there are {known}, and `firsthand --help` says more.")
    if not arguments[0].startswith("-") and arguments[0] not in commands:
        meant = suggest(arguments[0], tuple(commands))
        raise UserError(f"there is no command {arguments[0]!r}{meant}; there are {known}; see `firsthand --help`.")
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)
    if (chosen := commands.get(arguments[0])) is not None:
        # Its options alone: to set up those of every command takes longer than many commands do.
        return tyro.cli(chosen, prog=f"firsthand {arguments[0]}", args=arguments[1:], config=config)
    return tyro.extras.subcommand_cli_from_dict(
        commands,
        prog="firsthand",
        description=f"{DESCRIPTION} {laboratory_hint()}".rstrip(),
        args=arguments,
        config=config,
    )


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def _use_compilation_cache() -> None:
    """Let JAX keep what it compiled, so that the second run starts in seconds."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder() / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
