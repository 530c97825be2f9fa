"""How gradients become versions of a stage's state."""
