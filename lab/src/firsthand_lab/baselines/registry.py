"""The peers by name, what each takes, and what must be installed for it."""

from collections.abc import Callable
from dataclasses import dataclass

from firsthand.errors import UserError, suggest
from firsthand.tasks import Task

from ..experiments.base import MAX_SEEDS

OURS = "ours"


@dataclass(frozen=True)
class Peer:
    """One way to control a robot."""

    name: str
    """On the command line."""
    title: str
    """In tables."""
    runner: str
    """The job's `module:function`."""
    setting: str = "full"
    """Passed on to the runner."""
    seconds: float = 5.0
    """Core-seconds per episode of 1250 control steps, about, tests included."""
    extra: tuple[tuple[str, str], ...] = ()
    """More parameters of the job."""
    own: bool = False
    """Whether it is not a peer to be measured with: ours, a variant of it, or nothing at all."""
    paper: str = "–"
    """Its error while learning over the paper's own algorithm's, after 400 episodes, in the paper."""
    max_seeds: int = MAX_SEEDS
    few_tests: bool = False
    """Whether a test costs so much that only the middle and the end are tested."""
    told: str = "nothing but rewards"
    """Knowledge of robot and task that it needs besides limits, observations and control rate."""
    limits: str = "commands by clipping; joints by a cost"
    """How it keeps limits."""
    require: Callable[[Task, int], None] = lambda task, episodes: None
    """Raises `UserError` where something is not installed, or the robot or the number of episodes will not do."""


def _sb3(algorithm: str) -> Callable[[Task, int], None]:
    def check(task: Task, episodes: int) -> None:
        from .sb3 import require

        require(algorithm)

    return check


def _dreamerv3(task: Task, episodes: int) -> None:
    from .dreamerv3 import require

    require()


def _episodic(name: str) -> Callable[[Task, int], None]:
    def check(task: Task, episodes: int) -> None:
        from .episodic import require

        require(name, task, episodes)

    return check


def _pid(task: Task, episodes: int) -> None:
    from .pid import require

    require(task, episodes)


_COST = "kinematics and cost as functions"
_PREDICTIVE = "kinematics, weights of the cost"
_CONSTRAINTS = "commands and their rates exactly; joints over the horizon, softly"
_HERE = __name__.rpartition(".")[0]
PEERS = {
    peer.name: peer
    for peer in (
        Peer(OURS, "ours (fast)", f"{_HERE}.ours:run", seconds=5, own=True, told=_COST),
        Peer(
            "pid",
            "PI + feed-forward",
            f"{_HERE}.pid:run",
            seconds=6,
            told="the kinematics",
            limits="commands by clipping; joints' reference inside",
            require=_pid,
        ),
        Peer(
            "deepc",
            "DeePC",
            f"{_HERE}.episodic:run",
            seconds=8,
            extra=(("learner", "deepc"),),
            told=_PREDICTIVE,
            limits=_CONSTRAINTS,
            require=_episodic("deepc"),
        ),
        Peer(
            "koopman",
            "Koopman MPC",
            f"{_HERE}.episodic:run",
            seconds=8,
            extra=(("learner", "koopman"),),
            told=_PREDICTIVE,
            limits=_CONSTRAINTS,
            require=_episodic("koopman"),
        ),
        Peer(
            "neural-mpc",
            "our model in MPC",
            f"{_HERE}.episodic:run",
            seconds=15,
            extra=(("learner", "neural-mpc"),),
            told=_COST,
            limits="commands over the horizon; joints by a cost",
            require=_episodic("neural-mpc"),
        ),
        Peer(
            "residual",
            "residual, BPTT",
            f"{_HERE}.episodic:run",
            seconds=20,
            extra=(("learner", "residual"),),
            told=_COST + ", a PI controller",
            require=_episodic("residual"),
        ),
        *(
            Peer(
                name,
                title,
                f"{_HERE}.sb3:run",
                setting=setting,
                seconds=s,
                extra=(("algorithm", name.partition(":")[0]),),
                require=_sb3(name.partition(":")[0]),
            )
            for name, title, setting, s in (
                ("ppo", "PPO", "full", 5),
                ("sac", "SAC", "full", 30),
                ("crossq", "CrossQ, reduced", "reduced", 15),
                ("crossq:default", "CrossQ, default", "default", 130),
                ("droq", "DroQ", "full", 135),
                ("simba", "SimBa, reduced", "reduced", 30),
                ("simba:default", "SimBa, default", "default", 70),
            )
        ),
        Peer(
            "mbpo",
            "MBPO, our model",
            f"{_HERE}.mbpo:run",
            seconds=75,
            told=_COST,
            require=_sb3("mbpo"),
        ),
        Peer("imagination", "ours, imagined", f"{_HERE}.ours:run_imagination", seconds=5, own=True, told=_COST),
        Peer(
            "paper",
            "ours (paper)",
            f"{_HERE}.ours:run",
            seconds=3,
            extra=(("preset", "paper"),),
            own=True,
            told=_COST,
        ),
        Peer(
            "still",
            "standing still",
            f"{_HERE}.still:run",
            seconds=2,
            max_seeds=1,
            own=True,
            told="nothing",
            limits="does not move",
        ),
        Peer(
            "dreamerv3",
            "DreamerV3, reduced",
            f"{_HERE}.dreamerv3:run",
            setting="reduced",
            seconds=60,
            paper="× 2 after 400",
            few_tests=True,
            require=_dreamerv3,
        ),
        Peer(
            "dreamerv3:default",
            "DreamerV3, default",
            f"{_HERE}.dreamerv3:run",
            setting="default",
            seconds=2100,
            paper="× 2 after 400",
            max_seeds=1,
            few_tests=True,
            require=_dreamerv3,
        ),
        Peer(
            "tdmpc2",
            "TD-MPC2, reduced",
            f"{_HERE}.tdmpc2.job:run",
            setting="reduced",
            seconds=130,
            paper="× 3 after 400",
            few_tests=True,
        ),
        Peer(
            "tdmpc2:default",
            "TD-MPC2, default",
            f"{_HERE}.tdmpc2.job:run",
            setting="default",
            seconds=700,
            paper="× 3 after 400",
            max_seeds=1,
            few_tests=True,
        ),
    )
}


def select_peers(names: str) -> list[Peer]:
    """The peers of a comma-separated list, ours first; an unknown one is answered with all there are."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise UserError(f"peers is empty, but must name at least one of {', '.join(n for n in PEERS if n != OURS)}.")
    for name in wanted:
        if name not in PEERS:
            known = ", ".join(n for n in PEERS if n != OURS)
            raise UserError(f"There is no peer {name!r}{suggest(name, tuple(PEERS))}; known are {known}.")
    return [PEERS[OURS], *(PEERS[name] for name in dict.fromkeys(wanted) if name != OURS)]
