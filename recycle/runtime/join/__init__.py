"""How a joiner comes to hold what all others hold."""
