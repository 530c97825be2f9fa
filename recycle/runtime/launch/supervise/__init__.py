"""The launcher's part in a run."""
