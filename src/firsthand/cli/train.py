"""`firsthand train`."""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional


@dataclass(frozen=True)
class Train:
    """Learn a controller on a robot, from random weights."""

    robot: Positional[str]
    """The robot: excavator, excavator-pressure."""
    preset: str | None = None
    """fast (several policy steps per episode, the default) or paper (the paper's algorithm)."""
    episodes: int | None = None
    """Episodes in all; by default 40 with the fast preset and 200 with the paper's."""
    seed: int | None = None
    """Seed of everything random; by default 0."""
    out: Path | None = None
    """Folder of the run; by default runs/ROBOT-PRESET-seedS."""
    resume: bool = False
    """Continue the run in --out where it stopped; what is not given is taken from the run."""
    payload: float | None = None
    """Load at the tool in kg."""
    no_report: bool = False
    """Leave out the evaluation and the HTML report at the end."""
    eta: float | None = None
    """η, step size of the policy step."""
    alpha: float | None = None
    """α, weight of the change of commands in the preconditioner."""
    epsilon: float | None = None
    """ε, weight of the change of parameters in the preconditioner."""
    discount: float | None = None
    """γ, factor on the closed loop A + BK in the gradient."""
    policy_steps: int | None = None
    """Policy steps per episode."""
    imagined: int | None = None
    """Imagined trajectories that join the measured ones in each policy step."""
    model_steps: int | None = None
    """Adam steps on the model per episode."""
    model_rate: float | None = None
    """Adam's step size."""

    def run(self) -> int:
        """Train, evaluate, report."""
        from ..robots.registry import make_robot
        from ..runs import RunFolder, provenance
        from ..training import Trainer, TrainingConfig, TrainingStopped
        from ..training.display import TrainingDisplay, say
        from .results import finish

        changes = {
            name: getattr(self, name)
            for name in (
                "eta",
                "alpha",
                "epsilon",
                "discount",
                "policy_steps",
                "imagined",
                "model_steps",
                "model_rate",
            )
        }
        if self.resume:
            run, config = self._open(changes)
        else:
            config = TrainingConfig.of(
                self.robot,
                self.preset or "fast",
                episodes=self.episodes,
                seed=self.seed or 0,
                payload_kg=self.payload or 0.0,
                **changes,
            )
            run = RunFolder.create(
                self.out or default_folder(config.robot, config.preset, config.seed),
                config.as_dict(),
                provenance=provenance.collect(),
            )
        with run:
            robot = make_robot(config.robot, config.make_task(), payload_kg=config.payload_kg, seed=config.seed)
            display = TrainingDisplay(config, run.path)
            trainer = Trainer(robot, config, run, callbacks=(display,))
            if self.resume:
                for note in trainer.resume():
                    say(note)
                say(f"{run.path} has {trainer.episode} of {config.episodes} episodes.")
            with display, stop_on_interrupt(trainer, display):
                try:
                    trainer.train()
                except TrainingStopped as stopped:
                    say(str(stopped))
                    return 1
            if trainer.stop_requested:
                say(
                    f"Stopped after episode {trainer.episode}; everything is written. Continue with: "
                    f"firsthand train {config.robot} --out {run.path} --resume"
                )
                return 130
        if not self.no_report:
            finish(run.path)
        return 0

    def _open(self, changes: dict[str, Any]):
        """The run to resume and its configuration, after checking that what was given fits it."""
        from ..runs import RunFolder
        from ..training import TrainingConfig

        path = self.out or default_folder(self.robot, self.preset or "fast", self.seed or 0)
        run = RunFolder.open(path, writer=True)
        stored = TrainingConfig.from_dict(run.config)
        wanted = TrainingConfig.of(
            self.robot,
            self.preset or stored.preset,
            episodes=stored.episodes if self.episodes is None else self.episodes,
            seed=stored.seed if self.seed is None else self.seed,
            payload_kg=stored.payload_kg if self.payload is None else self.payload,
            **{name: getattr(stored.hyper, name) if value is None else value for name, value in changes.items()},
        )
        run.check_same_config(wanted.as_dict(), ignore=("episodes",))
        return run, wanted


def default_folder(robot: str, preset: str, seed: int) -> Path:
    """Where a run goes unless told otherwise."""
    return Path("runs") / f"{robot}-{preset}-seed{seed}"


class stop_on_interrupt:
    """Ctrl-C lets the episode and its files be finished, then stops; a second Ctrl-C stops at once."""

    def __init__(self, trainer: Any, display: Any) -> None:
        self.trainer, self.display = trainer, display

    def __enter__(self) -> None:
        self.before = signal.signal(signal.SIGINT, self.handle)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self.before)

    def handle(self, *_: object) -> None:
        """First: ask. Second: leave."""
        if self.trainer.stop_requested:
            raise KeyboardInterrupt
        self.trainer.stop_requested = True
        self.display.note("stopping after this episode; press Ctrl-C again to stop at once")
