"""`python -m firsthand`."""

from .cli import main

main()
