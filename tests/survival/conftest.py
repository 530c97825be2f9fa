"""What torch says of lost connections is what these tests are about: it would only fill the logs."""

import os

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
