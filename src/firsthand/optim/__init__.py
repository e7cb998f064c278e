"""The optimiser alone: roll-outs, closed-loop gradient and bounded steps on generic pytrees and functions."""
