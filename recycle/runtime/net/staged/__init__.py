"""Tensors of a device, carried through host memory by a transport that knows no devices."""
