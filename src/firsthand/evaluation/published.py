"""Numbers from the paper, for comparison."""

PAPER_TABLE_1 = {
    "paper, real HEAP": (0.523, 1.293, 0.045, 0.124, 0.09),
    "Nan & Hutter 2024": (0.375, 0.60, 0.0856, 0.162, 0.27),
    "Egli & Hutter 2022": (0.20, 0.525, 0.028, 0.067, 0.13),
}
"""v_avg, v_max (m/s), mean and largest error (m), ρ (s)."""
