"""A process that comes to a run that another one has begun."""

import threading

import pytest

from recycle.control.board.joinfile import JOIN_FILE, JoinFile, new_token
from recycle.control.store.tcp_store import listen, serve
from recycle.errors import UserError
from recycle.megatron.gpt.arriving import attend_run
from recycle.runtime.launch.meet.keepers import dismiss, is_kept
from recycle.runtime.launch.meet.rendezvous import Rendezvous
from recycle.runtime.launch.meet.start import Start
from recycle.state import keeper


@pytest.mark.parametrize("begun", [True, False], ids=["by mistake", "in a new start"])
def test_only_a_keeper_that_was_left_is_dismissed(tmp_path, monkeypatch, begun):
    store, token = serve(listen()), new_token()
    first, again = (Rendezvous(Start(rank, 2, "", "127.0.0.1", store.port), 0.5) for rank in range(2))
    JoinFile("127.0.0.1", store.port, 1, token).write(tmp_path / JOIN_FILE)
    if begun:
        first.admit(token, ("127.0.0.1", 1))
    with keeper.listen(token) as listener, keeper.listen_to_hosts("127.0.0.1") as door:
        monkeypatch.setattr(keeper, "listen_to_hosts", lambda _: door)
        threading.Thread(target=keeper.serve, args=([listener], token, 1), daemon=True).start()
        with pytest.raises(UserError):
            attend_run(
                tmp_path, lambda _: pytest.fail("there is nothing to serve"), again, print, keeps=True, goes_on=False
            )
        assert is_kept(token) == begun
        dismiss(token)
