"""Requests to etcd through the JSON gateway that each of its members has; where one fails, the next is asked.

There are libraries for this gateway, and none that goes on with another member, takes a password and limits how long
a watch may be silent; these three are most of what is here.
"""

import itertools
import random
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from types import MappingProxyType
from typing import Any
from weakref import finalize

import msgspec

from recycle.control.membership.errors import ControlError, StoreLost, StoreSilent
from recycle.control.membership.open_files import why_none_opens
from recycle.control.store.closing import close_with
from recycle.control.store.etcd_cluster import EtcdCluster

PATIENCE = 8.0
"""Seconds until nobody's answer is the store's loss. A change of etcd's leader takes two."""

ANSWER, LONGEST_ANSWER = 0.5, 4.0
"""Seconds for one member's answer, before the next one is asked: at first, and at last. They double with each round, so
that a dead member costs little, and busy ones are given time."""

PAUSE = 0.1
"""Seconds between two rounds through the members."""

KNOWN_HERE = {"serializable": True}
"""In a reading that a member answers by itself, which takes a quarter of what it takes to ask the others."""

Json = dict[str, Any]

_WITH_LEADER = {"Grpc-Metadata-hasleader": "true"}
"""A member that has lost the others does not say what it knows, and ends watches."""

_UNAVAILABLE = {1, 2, 4, 8, 10, 13, 14}
"""The statuses of gRPC with which another member, or the same one later, may do better."""

_UNAUTHENTICATED = 16
_TOO_LARGE = ("too large", "larger than max")
_NEW_TOKEN = ("invalid auth token", "revision of auth store is old")

_REMEDIES = {
    "user name is empty": "it asks for a user and a password; give etcd://USER:PASSWORD@...",
    "authentication failed": "user {user!r} or the password is wrong; give etcd://USER:PASSWORD@...",
    "authentication is not enabled": "it asks for no user and no password; leave USER:PASSWORD@ out",
    "permission denied": "user {user!r} may not use keys below {keys}; grant a role with readwrite there",
    "space exceeded": (
        "a member is full, so it takes no writes; run etcdctl compact, etcdctl defrag for each member, "
        "and etcdctl alarm disarm"
    ),
    "corrupt cluster": (
        "its members hold different data; replace the one that etcd's log names, and run etcdctl alarm disarm"
    ),
}
"""Why etcd refuses what a run needs, by what it says, and the remedy."""

_PROBES = {socket.TCP_KEEPIDLE: 1, socket.TCP_KEEPINTVL: 1, socket.TCP_KEEPCNT: 2}
"""Seconds and numbers of the kernel's probes of a silent connection: so a watch at a host that is lost ends soon, and
no member has anything to do for it."""


class _Unavailable(Exception):
    """A member has answered that it cannot do this now."""


class _Stranger(_Unavailable):
    """A member of another cluster than the run's has answered."""


class Gateway:
    """A connection to a cluster, for one thread; it is at one member at a time.

    A member of another cluster than the one that is meant counts as one that does not answer.

    Args:
        cluster: where it is.
        patience: seconds until nobody's answer is the store's loss.
        near: an address; a member there is asked first, because it is lost together with who asks it.

    Raises:
        StoreLost: files for TLS cannot be read.
    """

    def __init__(self, cluster: EtcdCluster, patience: float = PATIENCE, near: str = "") -> None:
        self._connection: HTTPConnection | None = None
        self._hang_up: finalize[[], Gateway] | None = None
        self._cluster = cluster
        self._patience = patience
        members = random.sample(cluster.members, len(cluster.members))
        self._members = itertools.cycle(sorted(members, key=lambda each: each[0] != near))
        self._member = next(self._members)
        self._context = _tls_context(cluster)
        self._token = ""

    @property
    def member(self) -> tuple[str, int]:
        """Which member is asked next."""
        return self._member

    def call(self, method: str, request: Mapping[str, object]) -> Json:
        """Make a request, of one member after the other until one answers; so it may be carried out twice.

        Args:
            method: the path of it in the gateway.
            request: its arguments.

        Raises:
            StoreSilent: no member answers.
            StoreLost: it does not let this user in, or cannot do its work.
            ControlError: etcd does not do this.
        """
        begin, silent = time.monotonic(), False
        for attempt in itertools.count(1):
            try:
                self._limit(min(ANSWER * 2 ** ((attempt - 1) // len(self._cluster.members)), LONGEST_ANSWER))
                self._authenticate()
                return self._ask(method, request)
            except (ControlError, StoreLost):
                self.close()
                raise
            except (OSError, HTTPException, _Unavailable, msgspec.DecodeError) as error:
                self.close()
                silent |= isinstance(error, (TimeoutError, _Unavailable))
                if time.monotonic() - begin > self._patience:
                    raise StoreSilent(f"{self._cluster} {self._why(error, silent)}") from error
                self._member = next(self._members)
                if attempt % len(self._cluster.members) == 0:
                    time.sleep(PAUSE)
        raise AssertionError("attempts do not end")

    def call_here(self, method: str, request: Mapping[str, object]) -> Json | None:
        """Make a request of the present member alone; None if it does not answer, or has lost the others.

        Args:
            method: the path of it in the gateway.
            request: its arguments; what is read is ``KNOWN_HERE``.

        Raises:
            StoreLost: it does not let this user in.
            ControlError: etcd does not do this.
        """
        try:
            self._limit(ANSWER)
            self._authenticate()
            return self._ask(method, request, _WITH_LEADER)
        except (OSError, HTTPException, _Unavailable, msgspec.DecodeError):
            self.close()
            return None

    def open_watch(self, request: Mapping[str, object]) -> "Watch":
        """Begin to watch at the present member.

        Args:
            request: what is watched.

        Raises:
            OSError: the member does not answer.
            HTTPException: it does not answer as it should.
        """
        connection = self._connect(ANSWER)
        watch = Watch(connection, self._member)
        connection.request(
            "POST", "/v3/watch", msgspec.json.encode({"create_request": request}), self._headers(_WITH_LEADER)
        )
        for option, value in _PROBES.items():
            connection.sock.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return watch

    def close(self) -> None:
        """Close the connection to the present member."""
        if self._hang_up is not None:
            self._hang_up()
            self._connection = self._hang_up = None

    def _limit(self, seconds: float) -> None:
        """Wait so long for the next answers."""
        if self._connection is None:
            self._connection = self._connect(seconds)
            self._hang_up = close_with(self, self._connection.close)
        elif self._connection.sock is not None and self._connection.timeout != seconds:
            self._connection.timeout = seconds
            self._connection.sock.settimeout(seconds)

    def _authenticate(self) -> None:
        if self._cluster.user and not self._token:
            who = {"name": self._cluster.user, "password": self._cluster.password}
            self._token = self._ask("auth/authenticate", who)["token"]

    def _ask(self, method: str, request: Mapping[str, object], more: Mapping[str, str] = MappingProxyType({})) -> Json:
        assert self._connection is not None, "its time is limited first"
        self._connection.request("POST", f"/v3/{method}", msgspec.json.encode(request), self._headers(more))
        response = self._connection.getresponse()
        answer = msgspec.json.decode(response.read(), type=Json)
        if response.status != 200:
            self._refuse(answer.get("code", 0), str(answer.get("error", response.reason)))
        found, meant = answer.get("header", {}).get("cluster_id", ""), self._cluster.identity
        if meant and found != meant:
            raise _Stranger(f"{self._member[0]}:{self._member[1]} is a member of cluster {found}")
        return answer

    def _refuse(self, code: int, text: str) -> None:
        if code == _UNAUTHENTICATED or any(each in text for each in _NEW_TOKEN):
            self._token = ""
            raise _Unavailable(text)
        # What is refused may have been allowed before: a run outlives that like any other loss of its store.
        if said := next((said for each, said in _REMEDIES.items() if each in text), ""):
            raise StoreLost(f"{self._cluster}: {said.format(user=self._cluster.user, keys=self._cluster.prefix)}")
        is_large = any(each in text for each in _TOO_LARGE)
        if code in _UNAVAILABLE and not is_large:
            raise _Unavailable(text)
        remedy = "start its members with a larger --max-request-bytes" if is_large else "see what etcd's log says"
        raise ControlError(f"{self._cluster}: {text}; {remedy}")

    def _why(self, error: Exception, silent: bool) -> str:
        """What it does not do, and what may be wrong.

        Args:
            error: the last one.
            silent: whether any member is there that cannot answer.
        """
        if refusal := why_none_opens():
            return f"cannot be reached: {refusal}"
        if isinstance(error, _Stranger):
            why = (
                f"{error}, and the run is in {self._cluster.identity}; start the members of that one again, or end the "
                "run and go on with --resume"
            )
        elif silent:
            why = f"{error}; more than half of its members must be alive and reach each other"
        elif isinstance(error, ssl.SSLError):
            why = f"{error.reason or error}; see whether ca, cert and key are those of this cluster"
        else:
            why = f"{error}; see whether it runs there, and whether it takes TLS (etcds://) or not (etcd://)"
        return f"does not answer: {why}"

    def _connect(self, seconds: float) -> HTTPConnection:
        host, port = self._member
        if self._context is None:
            return HTTPConnection(host, port, timeout=seconds)
        return HTTPSConnection(host, port, timeout=seconds, context=self._context)

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        return {**more, **({"Authorization": self._token} if self._token else {})}


class Watch:
    """What is set in a range of keys from a moment on.

    Args:
        connection: on which it is asked for.
        member: of the cluster that it is at.
    """

    def __init__(self, connection: HTTPConnection, member: tuple[str, int]) -> None:
        self.member = member
        self._connection = connection
        self._heard = b""
        close_with(self, connection.close)

    def news(self, timeout: float) -> list[Json]:
        """What was set since this was asked last, after something was or a time in seconds is over.

        Args:
            timeout: in seconds.

        Returns:
            Keys and values as ``kv/range`` gives them, in the order in which they were set.

        Raises:
            OSError: the watch has ended.
            DecodeError: not all that has come has come in one piece; it has to be asked for.
        """
        deadline = time.monotonic() + timeout
        connected = self._connection.sock
        while (left := deadline - time.monotonic()) > 0:
            connected.settimeout(left)
            with suppress(TimeoutError):
                heard = connected.recv(1 << 16)
                if not heard or b'"error"' in heard or b'"canceled"' in heard:
                    raise ConnectionError("the watch has ended")
                self._heard += heard
                if found := self._found():
                    return found
        return []

    def _found(self) -> list[Json]:
        """What is in the lines that have come, of which only those with events are decoded."""
        whole, newline, rest = self._heard.rpartition(b"\n")
        if newline:
            self._heard = rest
        told = [each for each in whole.split(b"\n") if b'"events"' in each]
        results = [msgspec.json.decode(each, type=Json)["result"] for each in told]
        return [event["kv"] for result in results for event in result["events"]]

    def close(self) -> None:
        """End it."""
        self._connection.close()


def _tls_context(cluster: EtcdCluster) -> ssl.SSLContext | None:
    if not cluster.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=cluster.authorities or None)
        if cluster.certificate:
            context.load_cert_chain(cluster.certificate, cluster.key or None)
    except OSError as error:
        files = ", ".join(filter(None, (cluster.authorities, cluster.certificate, cluster.key)))
        raise StoreLost(f"{files}: cannot be used for TLS: {error}; give PEM files that can be read") from error
    return context
