"""The processes of a run: who starts, watches and ends them."""
