"""State: copies of every stage in host memory, where they are, and what is taken from them after a failure."""
