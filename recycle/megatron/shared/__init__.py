"""What both drivers share: stages of Megatron's layers, their training, and the releases that are known."""
