"""What each host runs beside its workers: agents, and signs of life."""
