"""Who is alive: how members agree on a view, and through which store."""
