"""The trainer's side of the control folder: what people ask of a run through its folder while it trains."""

from .control import LiveControl as LiveControl
