"""Copies of a stage's versions in the memory of keepers: how they get there while it trains, and back."""
