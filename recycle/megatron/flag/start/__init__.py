"""What is replaced of Megatron's training code, and where."""
