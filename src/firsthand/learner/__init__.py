"""Algorithm 1 as pure functions on pytrees. Knows no plant, no file, no network."""
