"""What the loss of one host would end, or hold up, in a run over several."""

from collections import defaultdict
from collections.abc import Collection, Sequence


def risks(
    hosts: Sequence[str],
    stages: Sequence[Collection[int]],
    ranks: int,
    *,
    etcd: bool,
    kept: bool = False,
    order: str = "start ranks in another order",
    store: str = "--store",
) -> list[str]:
    """What the loss of one host would end, or hold up.

    Args:
        hosts: of each process, by rank.
        stages: that each process's server holds, by rank.
        ranks: of a server.
        etcd: whether the store is there, and outlives any of the hosts.
        kept: whether the memory of other hosts has the state of whichever is lost.
        order: how the servers of a stage come to several hosts.
        store: the option that names etcd.
    """
    end = (
        "and if that is lost, all wait for new servers, which get the state from memory"
        if kept
        else f"whose loss ends the run: {order}"
    )
    on_one_host: dict[str, list[int]] = defaultdict(list)
    for stage, host in stages_on_one_host(stages, hosts, ranks).items():
        on_one_host[host].append(stage)
    found = [
        f"all servers of stage{'s' * (len(own) > 1)} {', '.join(map(str, own))} are on {host}, {end}"
        for host, own in on_one_host.items()
    ]
    if not etcd and len(set(hosts)) > 1:
        found.append(
            f"the store is on {hosts[0]}, whose loss ends the run; with {store} etcd://HOST:PORT,... any host may be "
            "lost"
        )
    return found


def stages_on_one_host(stages: Sequence[Collection[int]], hosts: Sequence[str], ranks: int = 1) -> dict[int, str]:
    """The stages of which one host can take all servers along, and which, where there are several hosts.

    Args:
        stages: that the server of each process holds.
        hosts: of each process.
        ranks: of a server, which follow each other; it dies with any of them.
    """
    if len(set(hosts)) < 2:
        return {}
    fatal: dict[int, set[str]] = {}
    for place in range(0, len(hosts), ranks):
        own = set(hosts[place : place + ranks])
        for stage in stages[place]:
            fatal[stage] = fatal.get(stage, own) & own
    return {stage: min(found) for stage, found in sorted(fatal.items()) if found}
