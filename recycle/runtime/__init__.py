"""How a plan is run: executor, transport, stages, reduction, and the worker that ties them together."""
