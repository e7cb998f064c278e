"""Numbers from the paper, for comparison."""

PAPER_TABLE_1 = {
    "paper, real HEAP": (0.523, 1.293, 0.045, 0.124, 0.09),
    "Nan & Hutter 2024": (0.375, 0.60, 0.0856, 0.162, 0.27),
    "Egli & Hutter 2022": (0.20, 0.525, 0.028, 0.067, 0.13),
}
"""v_avg, v_max (m/s), mean and largest error (m), ρ (s)."""

_UNKNOWN = float("nan")
PAPER_SOFT_ARM = {
    "paper, real arm": (_UNKNOWN, _UNKNOWN, 0.0295, _UNKNOWN, _UNKNOWN),
    "Chen et al. 2024": (_UNKNOWN, _UNKNOWN, 0.028, _UNKNOWN, _UNKNOWN),
}
"""The same for the soft arm, of which the paper gives only the mean error; NaN is not known."""


def published_results(robot: str) -> dict[str, tuple[float, float, float, float, float]]:
    """Published results for a robot of this kind; empty if there are none."""
    if robot.startswith("excavator"):
        return PAPER_TABLE_1
    return PAPER_SOFT_ARM if robot == "soft-arm" else {}
