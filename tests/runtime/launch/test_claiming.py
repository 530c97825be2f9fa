"""The end of a run in etcd that its first process has left, with a real member of etcd."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore

import msgspec
import pytest

from harness.etcd import etcd, missing
from harness.examples import paper_job
from recycle.control.board.board import Board
from recycle.control.host.agent import DONE
from recycle.control.host.claim import HeldClaim
from recycle.control.membership.durations import Durations
from recycle.control.membership.messages import Verdict
from recycle.control.membership.view import Member, View
from recycle.control.store.etcd_store import EtcdStore
from recycle.faults.menu import Faults
from recycle.job import Server
from recycle.runtime.launch.meet.claiming import claimed, end_for_first
from recycle.runtime.launch.meet.rendezvous import Rendezvous
from recycle.runtime.launch.meet.start import Start
from recycle.runtime.launch.process.outcome import end_with_run
from recycle.runtime.launch.supervise.setting import Setting
from recycle.runtime.launch.supervise.supervisor import Supervisor

TOLD_TO_LEAVE = 143


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_who_ends_the_run_waits_for_those_who_still_look_for_its_end_and_leaves_no_keys():
    servers = [Server(pipeline, 0) for pipeline in range(3) for _ in range(2)]
    last = View(2, (Member(Server(1, 0), 0),))
    with etcd() as served:
        names = msgspec.structs.replace(served.cluster, run="gone")
        claim = HeldClaim(names, "mine", 3.0)
        meetings = [Rendezvous(Start(rank, 6, str(rank), "127.0.0.1", 1), 60.0, claim.cluster) for rank in range(6)]
        endpoint = meetings[0].endpoint("token")
        board = Board(endpoint.connect(), "token")
        board.verdicts.propose(Verdict(2, tuple(map(str, last.members)), 0))
        claim.release(over=False)
        for rank in (0, 1):
            meetings[rank].leave(TOLD_TO_LEAVE)

        looked = Semaphore(0)

        def told_to_end() -> bool:
            looked.release()
            return False

        def end(rank: int) -> int:
            status = end_with_run(endpoint, DONE if rank in (2, 3) else 137, 0.8, told_to_end)
            meetings[rank].leave(status)
            end_for_first(meetings[rank], endpoint, servers)
            return status

        with ThreadPoolExecutor() as threads:
            lost = [threads.submit(end, rank) for rank in (4, 5)]
            for _ in lost:
                looked.acquire()
            time.sleep(0.2)  # they look now, and again when others may have deleted what they look for
            for each in last.members:
                board.end.reach(last, each)
            kept = [threads.submit(end, rank) for rank in (2, 3)]
            assert [each.result(60) for each in (*kept, *lost)] == [DONE] * 4
        assert EtcdStore(names).newest_change() == 0


@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.parametrize(("stop", "left"), [("", b""), ("no live server", None)])
def test_an_error_of_the_first_process_takes_the_keys_of_no_run_that_goes_on(tmp_path, monkeypatch, stop, left):
    job = paper_job(pipelines=2, stages=1, micro_batches=2, released=0)
    view = View(0, (Member(Server(0, 0), 0), Member(Server(1, 0), 0)))

    def fail(supervisor):
        supervisor._board.verdicts.propose(Verdict(0, tuple(map(str, view.members)), 0, stop=stop))
        raise RuntimeError("unexpected")

    monkeypatch.setattr(Supervisor, "_look", fail)
    with etcd() as served:
        claim = claimed(served.cluster, None, "run", 3.0, 60.0, print)
        cluster = claim.__enter__()
        setting = Setting(
            job, view, 0, "memory", {}, Durations(), "127.0.0.1", Faults(), tmp_path, bool, cluster=cluster
        )
        with pytest.raises(RuntimeError, match="unexpected") as caught:
            Supervisor(setting, lambda *_: signal.pause() or 0, print).run()
        assert not claim.__exit__(caught.type, caught.value, caught.tb)
        assert EtcdStore(msgspec.structs.replace(cluster, scope="")).get(f"{cluster.scope}/open") == left
