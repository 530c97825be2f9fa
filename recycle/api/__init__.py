"""Planning from Python: what ``import recycle`` offers."""
