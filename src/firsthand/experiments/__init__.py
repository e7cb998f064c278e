"""One experiment per figure and table of the paper."""
