"""What the user of a training script is told of views and failures: a line each, on the error stream."""

import sys
from collections.abc import Sequence

from recycle.control.errors import StoreLost
from recycle.job import Server
from recycle.megatron.flag.protection import SILENCE
from recycle.record.recording import InstantLine, ViewLine
from recycle.record.reporting import Event, Reporter
from recycle.record.timeline import Span
from recycle.runtime.net.endpoint import Endpoint


class ConsoleReporter(Reporter):
    """Tells the user what happened, once for all servers.

    Args:
        server: who speaks.
        endpoint: of the run's store, where it is noted what was said already.
    """

    def __init__(self, server: Server, endpoint: Endpoint) -> None:
        super().__init__(None, lambda content: None)
        self._server = server
        self._endpoint = endpoint

    def tell(self, event: Event, spans: Sequence[Span] = ()) -> None:
        """Say that a view has begun, or what went wrong."""
        if isinstance(event, ViewLine) and event.epoch > 0 and event.servers[0] == str(self._server):
            kept = f"{event.retention:.0%} of the throughput"
            self._say(f"{event.cause}; training goes on with {len(event.servers)} servers and {kept}")
        elif isinstance(event, InstantLine) and self._is_news(event.text):
            self._say(event.text)

    def _is_news(self, text: str) -> bool:
        try:
            return self._endpoint.connect(SILENCE).add(f"said/{text}", 1) == 1
        except StoreLost:
            return True

    def _say(self, text: str) -> None:
        sys.stderr.write(f"recycle: {text}\n")
        sys.stderr.flush()
