"""Releases of torch whose gloo was tried: what is relied on here is looked for in any, and found in these."""

import torch

TRIED = ("2.9", "2.11", "2.13", "2.15")


def untried_release() -> str:
    """What is to be said of the installed torch; empty if its gloo was tried."""
    release = str(torch.__version__)
    if ".".join(release.split(".")[:2]) in TRIED:
        return ""
    tried = ", ".join(TRIED)
    return f"torch {release} has not been tried with the transport over gloo, and {tried} have; docs/howto/install.md"
