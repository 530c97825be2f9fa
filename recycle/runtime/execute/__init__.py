"""How a server executes its instruction list."""
