"""How far the learned part may go over its base while a machine works, and when it answers for an error.

Work has no episodes: one block is harder than the next, oil warms up, a load is taken. So the learned part is compared
with the base under the same conditions. At first, and whenever a block was worse than the base's usual one, the base
alone runs the next block. Was that one as bad, the conditions were, and nothing is held against the learned part. If
not, its authority is halved and its last good policy runs again.
"""

import dataclasses
import math
from dataclasses import dataclass

from ..base_guard import BaseSettings


@dataclass(frozen=True)
class Standing:
    """What is known of the learned part under some conditions."""

    authority: float
    """What it has, as a share of half the command range, whenever the base is not alone."""
    alone: bool = True
    """Whether the base alone runs the next block, to be compared with."""
    base_error: float = math.nan
    """The base's tracking error under these conditions."""
    base_peak: float = math.nan
    """Its largest recent error, in the scale of the policy's inputs."""
    accused: float = math.nan
    """Error of the block that the learned part answers for; NaN where it answers for none."""
    accused_peak: float = math.nan
    """Largest recent error in that block, where the base took over in it; NaN where it did not."""


def judge_block(
    standing: Standing, settings: BaseSettings, *, error: float, peak: float, base_share: float
) -> tuple[Standing, bool]:
    """The standing after a block, and whether the learned part was found to be worse than its base.

    `error` and `peak` are the block's, `base_share` is the share of it in which trust was lost. All of it was run as
    the standing says: by the base alone, or by both.
    """
    if not math.isfinite(error):
        return standing, False
    if standing.alone:
        known = math.isfinite(standing.base_error)
        usual = (standing.base_error + error) / 2 if known else error
        largest = peak if not math.isfinite(standing.base_peak) else max(peak, standing.base_peak)
        after = Standing(standing.authority, alone=False, base_error=usual, base_peak=largest)
        worse = standing.accused > settings.tolerance * error or standing.accused_peak > settings.limit * peak
        if not worse:
            return after, False
        smallest = settings.min_share * settings.first_authority
        return dataclasses.replace(after, authority=max(smallest, settings.shrink * standing.authority)), True
    if base_share > 0 or error > settings.tolerance * standing.base_error:
        why = peak if base_share > 0 else math.nan
        return dataclasses.replace(standing, alone=True, accused=error, accused_peak=why), False
    return dataclasses.replace(standing, authority=min(1.0, settings.growth * standing.authority)), False
