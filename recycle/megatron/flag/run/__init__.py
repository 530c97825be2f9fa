"""A plan in the place of Megatron's schedule, and servers that survive each other's death."""
