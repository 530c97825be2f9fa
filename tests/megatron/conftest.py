"""What lets any release of Megatron be imported on a machine without CUDA; its functions stay Megatron's own."""

from recycle.megatron.shared.missing import make_importable

make_importable()
