"""Which run of a name is the one that goes on in an etcd cluster: two must never share their keys.

Below the name of a run, each start of it has keys of its own. Which start counts is said by a claim, and that its run
goes on by keys that change: the claim itself, which its owner renews, or the signs of life of those who train, which
outlive the owner.
"""

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import msgspec

from recycle.control.host.children import fork_below, ignore_signals
from recycle.control.host.waiting_notice import WaitingNotice
from recycle.control.membership.errors import ControlError, StoreLost, StoreSilent
from recycle.control.store.etcd_cluster import MARK, EtcdCluster
from recycle.control.store.etcd_gateway import PATIENCE
from recycle.control.store.etcd_store import EtcdStore
from recycle.threads import NoneLeft

RENEWAL = 1.0
"""Seconds between two renewals of a claim."""

LOOK = 0.1
"""Seconds between two looks for one."""

SOON = 2.0
"""Seconds in which etcd answers at the start of a run, or a line says that the run waits for it."""

_KEY = "claim"


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said in the store.

    Attributes:
        scope: of the keys of the start that counts.
        origin: what its processes have in common, so that they know it for theirs.
        renewed: how often.
    """

    scope: str
    origin: str
    renewed: int = 0


class HeldClaim:
    """A claim of this process, which a process below it renews; so this one may fork at any time.

    Args:
        cluster: with the name of the run.
        origin: what the processes of this start have in common.
        silence: seconds without a sign of life after which a run has ended.
        returns: whether this may be the claim of a start that goes on, and has lost the process that held it.
        say: tells the user what this process waits for.

    Attributes:
        cluster: with the scope of this start.
        returned: whether that had begun already.

    Raises:
        ControlError: a run of that name goes on, etcd cannot be used, or the system gives no process.
    """

    def __init__(
        self,
        cluster: EtcdCluster,
        origin: str,
        silence: float,
        *,
        returns: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        cluster = _identified(cluster, say)
        own = Claim(secrets.token_hex(8), origin)
        claim = _take(cluster, own, silence, returns=returns)
        self.returned = claim.scope != own.scope
        self.cluster = msgspec.structs.replace(cluster, scope=claim.scope)
        try:
            self._process = fork_below(partial(_renew, cluster, claim))
        except NoneLeft as error:
            if not self.returned:
                forget(self.cluster)  # so that the others of this start wait no longer
            raise ControlError(str(error)) from error

    def release(self, *, over: bool = True) -> None:
        """At the end of this process: renew the claim no more.

        Args:
            over: whether the run has ended as well; then its keys are deleted.
        """
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        if over:
            forget(self.cluster)


@contextmanager
def _at_start() -> Iterator[None]:
    """At the start of a run it is the user's error that etcd cannot be used."""
    try:
        yield
    except StoreLost as error:
        raise ControlError(f"store: {error}") from error


@_at_start()
def _identified(cluster: EtcdCluster, say: Callable[[str], None]) -> EtcdCluster:
    """The same and no other cluster, whoever answers at its addresses later."""
    try:
        return msgspec.structs.replace(cluster, identity=EtcdStore(cluster, patience=SOON).identity)
    except StoreSilent:
        say(f"waits for {cluster}, which does not answer yet")
    return msgspec.structs.replace(cluster, identity=EtcdStore(cluster, patience=PATIENCE - SOON).identity)


@_at_start()
def _take(cluster: EtcdCluster, claim: Claim, silence: float, *, returns: bool) -> Claim:
    store, encoded = EtcdStore(cluster), msgspec.json.encode(claim)
    found = store.compare_set(_KEY, b"", encoded)
    if found != encoded:
        before = store.newest_change()
        time.sleep(max(silence, 2 * RENEWAL))
        if store.newest_change() != before:
            # Those who train outlive who held the claim.
            if returns and store.get(_KEY) == found and _read(cluster, found).origin == claim.origin:
                return _read(cluster, found)
            raise _taken(cluster)
        if store.compare_set(_KEY, found, encoded) != encoded:
            raise _taken(cluster)
        store.delete_all(lambda key: key != _KEY)
    store.set(_mark(claim), b"")
    return claim


@_at_start()
def find_claim(
    cluster: EtcdCluster, origin: str, patience: float, say: Callable[[str], None] = lambda _: None
) -> EtcdCluster:
    """The keys of a start that another of its processes has claimed.

    Args:
        cluster: with the name of the run.
        origin: what the processes of the start have in common.
        patience: how long to wait for it, in seconds.
        say: tells the user for whom this process waits.

    Returns:
        The cluster, with the scope of the start.

    Raises:
        ControlError: nobody has claimed it, another run has the name, or etcd cannot be used.
    """
    cluster = _identified(cluster, say)
    store, deadline, awaiting = EtcdStore(cluster), time.monotonic() + patience, WaitingNotice(say)
    # What was left by a run that has ended is never renewed.
    first = store.get(_KEY)
    while time.monotonic() < deadline:
        found = store.get(_KEY)
        if found is not None and found != first:
            claim = _read(cluster, found)
            if claim.origin != origin:
                raise _taken(cluster)
            # It is marked in a step of its own, and until then its keys take nothing.
            if store.get(_mark(claim)) is not None:
                return msgspec.structs.replace(cluster, scope=claim.scope)
        awaiting.look(lambda: f"waits for the first process, which begins run {cluster.run!r} in {cluster}")
        time.sleep(LOOK)
    raise ControlError(
        f"{cluster}: the first process has not begun run {cluster.run!r} within {patience:g} s: see what it says, and "
        "whether all were given the same --store"
    )


def forget(cluster: EtcdCluster) -> None:
    """Delete all keys of a run that has ended; where etcd is lost, whoever takes the name next does so."""
    with suppress(ControlError, StoreLost):
        store = EtcdStore(msgspec.structs.replace(cluster, scope=""))
        store.delete_all(lambda key: key.startswith(f"{cluster.scope}/"))
        claim = store.get(_KEY)
        if claim is not None and _read(cluster, claim).scope == cluster.scope:
            store.delete(_KEY)


def _mark(claim: Claim) -> str:
    return f"{claim.scope}/{MARK}"


def _read(cluster: EtcdCluster, stored: bytes) -> Claim:
    try:
        return msgspec.json.decode(stored, type=Claim)
    except msgspec.DecodeError as error:
        raise ControlError(
            f"{cluster}: run {cluster.run!r} was begun there by another release: install the same release on all hosts"
        ) from error


def _taken(cluster: EtcdCluster) -> ControlError:
    return ControlError(
        f"{cluster}: a run named {cluster.run!r} goes on there; give this one another name after the hosts of --store "
        "(etcd://HOST:PORT/NAME), or bring a lost host of that one back as docs/reference/return.md says"
    )


def _renew(cluster: EtcdCluster, claim: Claim) -> None:
    ignore_signals()
    store: EtcdStore | None = None
    while True:
        stored, renewed = map(msgspec.json.encode, (claim, msgspec.structs.replace(claim, renewed=claim.renewed + 1)))
        with suppress(StoreLost):
            store = store or EtcdStore(cluster)
            # Where etcd has lost it, it is claimed again, unless others have done so meanwhile.
            found = _read(cluster, store.compare_set(_KEY, stored, renewed) or store.compare_set(_KEY, b"", renewed))
            if found.scope != claim.scope:
                return  # others took the run for dead
            # Not always what was written now: where etcd is lost, it may have been carried out or not.
            claim = found
        time.sleep(RENEWAL)
