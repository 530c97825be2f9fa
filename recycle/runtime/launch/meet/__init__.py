"""How processes that were started apart find each other and a keeper."""
