"""Servers that sleep what their plan says."""
