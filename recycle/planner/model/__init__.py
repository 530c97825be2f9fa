"""The planning problem: its tables, its rules, what a schedule of it is worth, and how it becomes a plan."""
