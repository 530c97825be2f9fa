"""Which machine's monotonic clock a time was read from: two machines count from different moments."""

from functools import cache
from pathlib import Path


@cache
def clock_name() -> str:
    """The name of this machine's clock since it was started; what runs in its containers has the same."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
