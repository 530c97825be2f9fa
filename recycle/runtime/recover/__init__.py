"""From one view to the next."""
