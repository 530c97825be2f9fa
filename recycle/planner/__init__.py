"""How a plan is made. Only this package may import a solver."""
