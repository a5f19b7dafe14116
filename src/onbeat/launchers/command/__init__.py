"""Commands: programs that a node starts on its own machine."""
