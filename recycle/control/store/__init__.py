"""The stores where members meet, and how they are reached."""
