"""TD-MPC2 (Hansen, Su, Wang, 2024) for one task with state observations.

Written anew after its publication, with the settings of the official code.

Where it differs from the official code:

- The default has five Q functions, as the published algorithm; the official 1 M size has two (`official_smallest`).
- Slices are drawn with equal chance from all finished episodes, not first an episode and then a slice of it. This is
  the same as long as episodes are equally long.
- Actions with 20 or more entries get no extra rounds of planning.
- Initial weights are drawn from a normal distribution that is not truncated (standard deviation 0.02).
- Episodes end by a time limit only; there is no model of termination.
"""

from .agent import Agent as Agent
from .config import Config as Config
from .config import default as default
from .config import official_smallest as official_smallest
from .config import reduced as reduced
