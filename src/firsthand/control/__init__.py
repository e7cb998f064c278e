"""How a person speaks to a training run: files in the run's folder, and the operator's link to a machine. No JAX."""

from .files import EVENTS as EVENTS
from .files import Event as Event
from .files import Request as Request
from .files import Status as Status
from .files import read_status as read_status
from .files import send as send
