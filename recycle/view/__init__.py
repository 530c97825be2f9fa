"""How plans and measured runs look: one chart, and one file per view that draws it."""
