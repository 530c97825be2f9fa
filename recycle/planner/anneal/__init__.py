"""Schedules made better step by step, for as long as one likes."""
