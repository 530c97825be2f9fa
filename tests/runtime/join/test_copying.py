from harness.examples import placed_job
from recycle.control.membership.messages import JoinRequest, MoveOrder
from recycle.control.membership.view import View
from recycle.holding import own_layout, with_own_layout
from recycle.job import Server
from recycle.placement import PlacedPipeline
from recycle.placing.spreading import spread
from recycle.runtime.join.copying import find_copies, has_copies

JOB = with_own_layout(placed_job("consecutive:2", pipelines=3, servers=4, limit=24))
VIEW = View.among(server for server in JOB.servers() if server != Server(1, 2))


def order():
    """W1_2 is dead, and its chunks 4 and 5 go to its neighbours."""
    home = own_layout(JOB)
    servers = spread(JOB, home[1].servers, {0, 1, 3}, [each.chunks for each in home[1].servers])
    return MoveOrder(0, (home[0], PlacedPipeline(home[1].micro_batches, servers), home[2]))


def test_each_chunk_that_a_server_lacks_comes_from_the_holder_with_the_least_to_send():
    copies = [(each.chunk, str(each.source), str(each.target)) for each in find_copies(JOB, order(), VIEW)]
    assert copies == [(4, "W0_2#0", "W1_1#0"), (5, "W2_2#0", "W1_3#0")]
    # Who gives a chunk away sends it itself: nobody of another pipeline has to.
    back = MoveOrder(0, own_layout(JOB))
    moved = JOB.__class__(JOB.pipelines, JOB.micro_batches, JOB.stages, JOB.latency, layout=order().layout)
    whole = View.among(JOB.servers())
    found = [(each.chunk, str(each.source)) for each in find_copies(moved, back, whole)]
    assert found == [(4, "W1_1#0"), (5, "W1_3#0")]


def test_copies_are_there_when_every_target_has_said_so():
    said = [JoinRequest("W1_1#0", 0, 4, "synced", chunk=4), JoinRequest("W1_3#0", 0, 5, "asking", chunk=5)]
    assert not has_copies(JOB, order(), VIEW, said)
    # That another chunk has come to it says nothing of this one.
    assert not has_copies(JOB, order(), VIEW, [said[0], JoinRequest("W1_3#0", 0, 4, "synced", chunk=4)])
    assert has_copies(JOB, order(), VIEW, [said[0], JoinRequest("W1_3#0", 0, 5, "synced", chunk=5)])
