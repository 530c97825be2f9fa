"""What a Kubernetes manifest has run in a container, on hosts of namespaces."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.hosts import Host

Begun = tuple[list[str], dict[str, str]]
"""Words, and variables."""


def begin(container: Mapping[str, Any], name: str, variables: Mapping[str, str], changes: Mapping[str, str]) -> Begun:
    """What runs in a container, as Kubernetes starts it.

    Args:
        container: of the manifest.
        name: of its pod.
        variables: that Kubernetes sets by itself, and others that are other here.
        changes: what is other here, by what stands in the manifest.
    """
    given = {each["name"]: each.get("value", name) for each in container["env"]} | dict(variables)
    words = [re.sub(r"\$\((\w+)\)", lambda found: given.get(found[1], found[0]), word) for word in container["command"]]
    for old, new in changes.items():
        assert any(old in word for word in words), old
        words = [word.replace(old, new) for word in words]
    return words, given


def on_node(node: Host, begun: Begun) -> tuple[Sequence[str], Host, dict[str, str]]:
    """What is needed to start that on a host."""
    words, variables = begun
    return words, node, variables
