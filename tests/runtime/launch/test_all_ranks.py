"""All ranks of a server are served from one command, in a process each."""

import os

from recycle.runtime.launch.all_ranks import serve_all_ranks


def test_each_rank_serves_in_a_process_of_its_own(tmp_path):
    def serve(rank):
        (tmp_path / str(rank.number)).write_text(f"{os.getpid()} of {rank.size}")
        return 7 + rank.number

    assert serve_all_ranks(3, serve) == 7
    served = [(tmp_path / str(number)).read_text() for number in range(3)]
    assert len(set(served)) == 3
    assert served[0] == f"{os.getpid()} of 3"
