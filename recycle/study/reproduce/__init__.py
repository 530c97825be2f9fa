"""Published tables, computed again."""
