"""The project's own trainer: a GPT of Megatron's layers."""
