"""The paper's theory, measured: gradient errors, regrets, shifts between episodes, growth of the loop, bounds."""
