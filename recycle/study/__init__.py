"""Study: what failures would cost, with each way of surviving them, over the same trace."""
