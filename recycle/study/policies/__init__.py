"""The ways of surviving that are compared, one file each."""
