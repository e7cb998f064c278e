"""Settings of DreamerV3, as overrides of sheeprl's configuration.

All have the networks of the smallest official size (`size1m`, here 0.65 M weights), the Nature version of the algorithm
(`dreamer_v3_5` of sheeprl) and its published hyperparameters, and observations that are the vector of `RobotView`.

| | default | reduced | tiny |
|---|---|---|---|
| batch, sequences × steps | 16 × 64, as published | 8 × 32 | 2 × 8 |
| updates per control step | 1 ("train ratio 1024"), official for this size and control from vectors | 1/12 | 1/16 |
| learning rate, warm-up | 4e-5, 1000 updates, as published | 2e-4, 200 updates | 1e-2, none |
| learning starts after | 1024 steps, as published | 1024 steps | 32 steps |
| control steps per second of a core's time, estimated | 0.6 | 17 | |
| 40 episodes of the excavator, 50 000 steps | 23 hours | 50 minutes | |

`reduced` has a twelfth of the updates on a quarter of the data each. Its learning rate is raised because updates are
few; it was not tuned. Speeds are worked out from the processor time of single updates, 1.6 s at the default setting.
All differ from the publication in this: one robot in place of 16 side by side, control steps are not repeated, and the
replay holds the whole run, which is less than the published 5 million steps.
"""

from dataclasses import dataclass

COMMON = (
    "exp=dreamer_v3_5",
    "algo=dreamer_v3_5_1M",
    "env=gym",
    "env.id=robot",
    "env.wrapper={_target_: learner.robot}",
    "~env.wrapper.id",
    "~env.wrapper.render_mode",
    "env.num_envs=1",
    "env.sync_env=True",
    "env.capture_video=False",
    "algo.cnn_keys.encoder=[]",
    "algo.mlp_keys.encoder=[state]",
    "algo.run_test=False",
    "buffer.memmap=False",
    "metric.log_level=0",
    "model_manager.disabled=True",
    "fabric.callbacks=[{_target_: learner.BetweenTrajectories, keep_last: 1}]",
    "run_name=run",
)


@dataclass(frozen=True)
class Setting:
    """One way to run it."""

    says: str
    """The changes from the published settings, for the table."""
    overrides: tuple[str, ...]
    """Changes to sheeprl's configuration."""


SETTINGS = {
    "default": Setting(
        "size1m with the official settings for control from vectors (an update per step); one robot, no action repeat",
        ("algo.replay_ratio=1.0",),
    ),
    "reduced": Setting(
        "size1m; batches 8 x 32 (16 x 64), an update per 12 steps (1), learning rate 2e-4 (4e-5) after 200 updates "
        "(1000); one robot, no action repeat",
        (
            "algo.replay_ratio=0.0833333333",
            "algo.per_rank_batch_size=8",
            "algo.per_rank_sequence_length=32",
            "algo.optimizer.lr=2e-4",
            "algo.optimizer.warmup=200",
        ),
    ),
    "tiny": Setting(
        "for tests only",
        (
            "algo.replay_ratio=0.0625",
            "algo.per_rank_batch_size=2",
            "algo.per_rank_sequence_length=8",
            "algo.learning_starts=32",
            "algo.optimizer.lr=1e-2",
            "algo.optimizer.warmup=0",
        ),
    ),
}
