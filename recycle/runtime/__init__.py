"""How a plan is run on the servers of a view, and what may go wrong in it."""
