"""Who sums which gradients with whom: all agree on it, and ask in an order in which nobody waits for ever."""

from hypothesis import given
from hypothesis import strategies as st

from recycle.control.membership.view import View
from recycle.holding import placed
from recycle.runtime.net.peers import chunk_peers, peers_of_last
from tests.planner.test_unequal import some_dead, unequal_jobs


class AskedNetwork:
    """Notes which groups are asked for; a group is its name and its members."""

    def __init__(self, view, server):
        self.view = view
        self.server = server
        self.peers = f"stage/{server.stage}", view.peers(server.stage)
        self.asked = []

    def group(self, name, servers):
        self.asked.append((name, tuple(servers)))
        return self.asked[-1]


@given(st.data())
def test_all_holders_of_a_chunk_meet_in_one_group(data):
    job = data.draw(unequal_jobs(4))
    dead = some_dead(data.draw, job)
    view = View.among(each for each in job.servers() if each not in dead)
    networks = {server: AskedNetwork(view, server) for server in view.servers}
    found = {server: chunk_peers(job, network) for server, network in networks.items()}
    for server, peers in found.items():
        assert sorted(chunk for each in peers for chunk in each.chunks) == list(placed(job, server).chunks)
        for each in peers:
            assert server in each.servers
            assert each.group[1] == each.servers
            assert all(each in found[other] for other in each.servers)
            assert all((other in each.servers) == (each.chunks[0] in placed(job, other).chunks) for other in networks)
        last = peers_of_last(job, peers)
        assert (last is not None) == (len(job.stages) - 1 in placed(job, server).chunks)
    # Who asks for two groups asks in the order in which all others do.
    for network in networks.values():
        asked = [int(name.removeprefix("chunk/")) for name, _ in network.asked]
        assert asked == sorted(set(asked))
