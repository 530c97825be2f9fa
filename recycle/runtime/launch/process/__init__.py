"""One process of a run: how it is forked, named, ended and heard."""
