"""Gradients and the optimizer's steps, and when a server may make them."""
