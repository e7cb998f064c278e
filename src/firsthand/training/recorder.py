"""What a run keeps: episodes, metrics, checkpoints, the best policy; in memory or in a run folder."""

import contextlib
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec

from ..errors import UserError
from ..models import Controller, Policy
from ..robots import EpisodeRecord
from ..runs import RunFolder, atomic
from ..runs.pytrees import from_arrays, to_arrays
from .bases import on_base_of
from .parts import AbstractRecorder, Checkpoint, EpisodeSummary, KeptPolicy, Resumed

PROOF_EPISODES = 3
"""Episodes that a policy's proof looks at: its own and the ones before it."""

FRESH_EPISODES = 10
"""For this many episodes a proof counts in full. After that it grows old: a machine that drifts is another machine."""
AGEING = 1.03
"""By this factor per episode a proof that is older than `FRESH_EPISODES` counts as worse."""

OPERATORS = "operator."
"""What the arrays of an operator's policy begin with in a checkpoint."""

MIN_VALID_SHARE = 0.5
"""A policy is proven only by an episode of which more than this share was measured soundly."""


def proof(errors: Sequence[float]) -> float:
    """How well the last episode's policy is proven, given the errors of the episodes so far; the lower, the better.

    The larger of its own error and the mean over `PROOF_EPISODES` episodes. References differ in difficulty: one easy
    episode proves little, unless the policies just before, which are much like it, did well too.
    """
    recent = [error for error in errors[-PROOF_EPISODES:] if math.isfinite(error)]
    return max(errors[-1], float(np.mean(recent))) if recent else math.nan


def proofs(errors: Sequence[float], valid_shares: Sequence[float]) -> list[float]:
    """The proof of each episode's policy; NaN where too little was measured."""
    shares = enumerate(valid_shares)
    return [proof(errors[: k + 1]) if share > MIN_VALID_SHARE else math.nan for k, share in shares]


def aged_proof(proven: float, age: int) -> float:
    """The value of a proof after `age` more episodes; the lower, the better."""
    return proven * AGEING ** max(age - FRESH_EPISODES, 0)


def find_kept(proven: Sequence[float]) -> int | None:
    """Which of the episodes' policies is kept in the end, by their proofs; None where nothing is proven."""
    kept: int | None = None
    for k, value in enumerate(proven):
        if value < (math.inf if kept is None else aged_proof(proven[kept], k - kept)):
            kept = k
    return kept


def measured_score(metrics: Mapping[str, Any]) -> float:
    """What an episode's policy is judged by, of a line of metrics.jsonl, where NaN is null: what a machine can know.

    The tracking error as measured, or, where nothing is followed, the cost per step.
    """
    value = metrics["score"] if "score" in metrics else metrics["measured_tracking_error"]
    return math.nan if value is None else float(value)


class PolicyKeeper:
    """Decides after each episode whether its policy is the best one that was lately proven."""

    def __init__(self, kept: KeptPolicy | None = None, errors: Sequence[float] = ()) -> None:
        self.kept = kept
        self._errors = list(errors)[-PROOF_EPISODES:]

    def consider(self, policy: Controller, episode: int, error: float, valid_share: float) -> bool:
        """Whether the policy that ran this episode is the one to keep from now on."""
        self._errors = [*self._errors, error][-PROOF_EPISODES:]
        proven = proof(self._errors)
        best = math.inf if self.kept is None else aged_proof(self.kept.proof, episode - self.kept.episode)
        if not (proven < best and valid_share > MIN_VALID_SHARE):
            return False
        self.kept = KeptPolicy(policy, episode, error, proven)
        return True


class MemoryRecorder(AbstractRecorder):
    """Keeps a run in memory, for as long as the process lives."""

    def __init__(self) -> None:
        self._keeper = PolicyKeeper()
        self._episodes: list[tuple[EpisodeSummary, Controller]] = []
        self._identity = secrets.token_hex(32)

    @property
    def identity(self) -> str:
        """A random number."""
        return self._identity

    @property
    def kept(self) -> KeptPolicy | None:
        """The best policy that the robot has proven; None while there is none."""
        return self._keeper.kept

    def record(self, summary: EpisodeSummary, policy: Controller, checkpoint: Checkpoint) -> None:
        """Keep what ran; there is nothing to go on from."""
        self._episodes.append((summary, policy))
        metrics = summary.metrics
        self._keeper.consider(policy, summary.episode, measured_score(metrics), metrics["valid_share"])

    def replace_checkpoint(self, episode: int, checkpoint: Checkpoint) -> None:
        """Nothing: a run in memory is not resumed."""

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per recorded episode."""
        return [dict(summary.metrics) for summary, _ in self._episodes]

    def load_policy(self, episode: int, spec: ControlSpec) -> Controller:
        """The policy that ran an episode."""
        return self._episodes[episode - 1][1]

    def load_record(self, episode: int, spec: ControlSpec) -> EpisodeRecord:
        """The robot's trajectories in an episode."""
        return self._episodes[episode - 1][0].record

    def resume(self, template: Checkpoint) -> Resumed:
        """From the beginning."""
        return Resumed(0, template, (), [])


class FolderRecorder(AbstractRecorder):
    """Keeps a run in its folder, so that it can be killed at any instant and resumed."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self._keeper = PolicyKeeper()

    @property
    def identity(self) -> str:
        """The folder's."""
        return self.run.identity

    @property
    def kept(self) -> KeptPolicy | None:
        """The best policy that the robot has proven; None while there is none."""
        return self._keeper.kept

    def record(self, summary: EpisodeSummary, policy: Controller, checkpoint: Checkpoint) -> None:
        """Write the files of an episode, in the order that a crash at any instant can be resumed from."""
        episode, metrics = summary.episode, summary.metrics
        self.run.save_episode(episode, {**summary.record.arrays(), **policy.arrays()}, {"episode": episode})
        self.run.append_metrics(metrics)
        if self._keeper.consider(policy, episode, measured_score(metrics), metrics["valid_share"]):
            self._save_kept(policy.arrays(), episode, measured_score(metrics))
        self.replace_checkpoint(episode, checkpoint)

    def replace_checkpoint(self, episode: int, checkpoint: Checkpoint) -> None:
        """Write the checkpoint of an episode, or replace it. Before the first episode there is none."""
        if episode == 0:
            return
        info: dict[str, Any] = {"best_error": math.inf if self.kept is None else self.kept.proof}
        if checkpoint.chosen_on:
            info["operators_policy"] = checkpoint.chosen_on
        self.run.save_checkpoint(episode, checkpoint_arrays(checkpoint), info)

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per recorded episode."""
        return self.run.read_metrics()

    def load_policy(self, episode: int, spec: ControlSpec) -> Controller:
        """The policy that ran an episode."""
        arrays = self.run.load_episode(episode)[0]
        with atomic.using(f"episode {episode} of {self.run.path}"):
            return Controller.from_arrays(spec, arrays)

    def load_record(self, episode: int, spec: ControlSpec) -> EpisodeRecord:
        """The robot's trajectories in an episode."""
        arrays = self.run.load_episode(episode)[0]
        with atomic.using(f"episode {episode} of {self.run.path}"):
            record = EpisodeRecord.from_arrays(arrays)
            record.check(spec)
        return record

    def resume(self, template: Checkpoint) -> Resumed:
        """Load the newest checkpoint whose digest is right, and remove what is newer."""
        episode, checkpoint, best_error, notes = 0, template, math.inf, []
        if self.run.checkpoints():
            found = self.run.load_checkpoint()
            with atomic.using(f"the checkpoint of episode {found.episode} of {self.run.path}"):
                checkpoint = checkpoint_from_arrays(template, found.arrays)
                checkpoint = checkpoint._replace(chosen_on=str(found.info.get("operators_policy", "")))
                episode, best_error, notes = found.episode, float(found.info["best_error"]), list(found.notes)
        self.run.rewind(episode)
        self._resume_kept(episode, best_error, template.learner.policy.spec)
        return Resumed(episode, checkpoint, self._records(episode, template.learner.policy.spec), notes)

    def _records(self, episodes: int, spec: ControlSpec) -> Iterator[EpisodeRecord]:
        return (self.load_record(episode, spec) for episode in range(1, episodes + 1))

    def _resume_kept(self, episode: int, best_error: float, spec: ControlSpec) -> None:
        """Where the kept policy is one of an episode that is done again, or gone, keep the best of those before."""
        rows = self.run.read_metrics()
        with atomic.using(f"metrics.jsonl of {self.run.path}"):
            errors = [measured_score(row) for row in rows]
        with contextlib.suppress(UserError):  # damaged
            best = self.run.load_best()
            with atomic.using(f"best.safetensors of {self.run.path}"):
                number = 0 if best is None else int(best[1]["episode"])
            if best is not None and number <= episode:
                with atomic.using(f"best.safetensors of {self.run.path}"):
                    policy = Controller.from_arrays(spec, best[0])
                    kept = KeptPolicy(policy, number, float(best[1]["tracking_error"]), best_error)
                self._keeper = PolicyKeeper(kept, errors)
                return
        with atomic.using(f"metrics.jsonl of {self.run.path}"):
            proven = proofs(errors, [row["valid_share"] for row in rows])
        k = find_kept(proven)
        if k is None:
            self.run.drop_best()
            self._keeper = PolicyKeeper(None, errors)
            return
        number = rows[k]["episode"]
        policy = self.load_policy(number, spec)
        self._save_kept(policy.arrays(), number, errors[k])
        self._keeper = PolicyKeeper(KeptPolicy(policy, number, errors[k], proven[k]), errors)

    def _save_kept(self, arrays: dict[str, np.ndarray], episode: int, error: float) -> None:
        self.run.save_best(arrays, {"episode": episode, "tracking_error": error})


def checkpoint_arrays(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """The part of a checkpoint that is arrays, under the names that its file has."""
    arrays = to_arrays({"learner": checkpoint.learner, "robot": checkpoint.robot})
    chosen = checkpoint.operators_policy
    return arrays | ({} if chosen is None else {OPERATORS + name: array for name, array in chosen.arrays().items()})


def checkpoint_from_arrays(template: Checkpoint, arrays: Mapping[str, np.ndarray]) -> Checkpoint:
    """What `checkpoint_arrays` wrote; `template` has the structure of learner and robot."""
    chosen = {name.removeprefix(OPERATORS): array for name, array in arrays.items() if name.startswith(OPERATORS)}
    others = {name: array for name, array in arrays.items() if not name.startswith(OPERATORS)}
    restored = from_arrays({"learner": template.learner, "robot": template.robot}, others)
    policy: Policy = restored["learner"].policy
    operators = on_base_of(Controller.from_arrays(policy.spec, chosen), policy) if chosen else None
    return Checkpoint(restored["learner"], restored["robot"], operators_policy=operators)
