"""What a run leaves on disk, written so that a crash at any instant loses at most the episode in progress.

`from firsthand.runs import pytrees` is separate on purpose: it is the only part that imports JAX, and a
program that only reads a run should not wait for that.
"""

from firsthand.runs import atomic as atomic
from firsthand.runs import provenance as provenance
from firsthand.runs.folder import Checkpoint as Checkpoint
from firsthand.runs.folder import RunFolder as RunFolder
