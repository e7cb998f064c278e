"""Peers: other ways to control the same robot, on the same task, with the same metrics."""
