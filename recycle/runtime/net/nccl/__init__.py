"""Tensors of GPUs, carried by NCCL beside a control plane in host memory."""
