"""`python -m firsthand_onboard` is `firsthand-onboard`."""

from .cli import console

console()
