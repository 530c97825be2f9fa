"""What ``import recycle`` offers: planning, studies and recorded runs, from Python."""
