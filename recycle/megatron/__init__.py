"""The only place that imports megatron: stages and their training, backward split, CPU shims, and two drivers."""
