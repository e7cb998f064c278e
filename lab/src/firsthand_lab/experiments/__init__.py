"""Every figure and table of the paper by one command: `firsthand experiment NAME`.

An experiment is a class in a module of its own and a line in `registry.py`. It says which independent **jobs** there
are and what follows from their data; everything else (processes, Ray, progress, continuing, files, the written
finding) is done here. `base.py` has the contract, with an example.
"""

from .base import Comparison as Comparison
from .base import Cost as Cost
from .base import Experiment as Experiment
from .base import Finding as Finding
from .base import Job as Job
from .base import Report as Report
from .base import Result as Result
from .base import Seeds as Seeds
from .base import Size as Size
from .base import Verdict as Verdict
