"""The environment of all processes in these tests."""

import os

# What torch says of lost connections is what these tests are about: it would only fill the logs.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
# Torch looks up the name of every store's address. No lookup of a namespace's address is ever answered by a name, and
# one that is not answered at all must not take longer than what is tested.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
