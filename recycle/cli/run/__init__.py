"""A training run as the command line makes it, shows it, and stands in for its first process."""
