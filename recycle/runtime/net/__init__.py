"""How ranks reach each other: groups, links, waiting and giving up. The only place that reaches under torch."""
