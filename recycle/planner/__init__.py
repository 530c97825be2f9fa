"""How a plan is made. The exact solver is called here alone; where layers move to, ``placing`` has solved as a flow."""
