"""What a plan is: instructions, their order per server, and how both are timed and checked."""
