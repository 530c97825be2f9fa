"""Faults: what goes wrong, and when."""
