"""Ports for what listens a while after its port was chosen."""

import random
import socket
from pathlib import Path

LEAST = 10_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """One that nobody listens at, and that the kernel gives to nobody who asks for any: others do so all the time."""
    first_given = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32_768
    while True:
        port = random.randrange(LEAST, first_given)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
