"""The command line: `firsthand COMMAND`, a module here for each."""

import io
import os
import sys
from typing import Annotated

import tyro

from .. import __version__
from ..cache import cache_folder
from ..errors import UserError
from .characterize import Characterize
from .compare import Compare
from .dashboard import Dashboard
from .evaluate import Evaluate
from .experiment import Experiment
from .export import Export
from .inspect import Inspect
from .machine import Machine
from .report import Report
from .simulator import Simulator
from .train import Train

Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Dashboard, tyro.conf.subcommand("dashboard")]
    | Annotated[Characterize, tyro.conf.subcommand("characterize")]
    | Annotated[Inspect, tyro.conf.subcommand("inspect")]
    | Annotated[Machine, tyro.conf.subcommand("machine")]
    | Annotated[Simulator, tyro.conf.subcommand("simulator")]
    | Annotated[Experiment, tyro.conf.subcommand("experiment")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
)

WRONG_INPUT = 2
INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run one command. A mistake of the user's ends with one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Greek letters shall not end a training run
    if (sys.argv[1:] if arguments is None else arguments) == ["--version"]:
        print(__version__)
        sys.exit(0)
    command = tyro.cli(
        Command,  # pyright: ignore[reportArgumentType]
        prog="firsthand",
        description="Train a robot's controller on the robot itself. (firsthand --version prints the version.)",
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
    )
    _use_compilation_cache()
    try:
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
        what = "there is not enough memory for this; ask for less, for example fewer --episodes or --imagined"
        print(f"firsthand: {what}.", file=sys.stderr)
        sys.exit(WRONG_INPUT)


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def _use_compilation_cache() -> None:
    """Let JAX keep what it compiled, so that the second run starts in seconds."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder() / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
