"""Schedules made in one go: list scheduling, batches of equal events, and the published orders."""
