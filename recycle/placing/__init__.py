"""Where layers go: cuts for every number of servers, pipelines for the live ones, and what a move costs and gains."""
