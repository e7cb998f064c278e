"""Robots of the suite, each in a file like a user's: a Gymnasium environment and what is known about it, no more."""
