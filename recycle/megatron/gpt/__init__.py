"""The project's own trainer: a GPT of Megatron's layers."""

from recycle.megatron.shared.cpu import import_megatron

import_megatron()
