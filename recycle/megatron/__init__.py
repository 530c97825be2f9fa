"""The only place that imports megatron: model, backward split, schedule adapter, CPU shims."""
