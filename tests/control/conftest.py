"""A store of each kind, and what the tests of the control package share."""

import uuid
from collections.abc import Callable, Iterator

import msgspec
import pytest

from harness.etcd import etcd, missing
from harness.memory_store import MemoryStore
from harness.relays import relays
from harness.started import wait_until
from harness.stores import local_store, store_apart
from recycle.control.membership.addresses import LOOPBACK
from recycle.control.store.etcd_cluster import EtcdCluster
from recycle.control.store.etcd_store import EtcdStore
from recycle.control.store.local_store import LocalStore, door_of_store
from recycle.control.store.relay import door_of
from recycle.control.store.relayed_store import RelayedStore
from recycle.control.store.store import Store
from recycle.control.store.tcp_store import TorchStore, listen, serve


@pytest.fixture(scope="session")
def cluster() -> Iterator[EtcdCluster]:
    if why_not := missing():
        pytest.skip(why_not)
    with etcd() as served:
        yield served.cluster


@pytest.fixture
def keys(cluster: EtcdCluster) -> EtcdCluster:
    """Of a run that no other test knows."""
    return msgspec.structs.replace(cluster, run=uuid.uuid4().hex)


@pytest.fixture(params=["memory", "local", "torch", "etcd", "relayed"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    if request.param == "etcd":
        yield EtcdStore(request.getfixturevalue("keys"))
        return
    if request.param == "relayed":
        keys = request.getfixturevalue("keys")
        door = door_of(keys.run, "")
        with relays({door: lambda: EtcdStore(keys)}):
            yield RelayedStore(door, lambda: EtcdStore(keys))
        return
    if request.param == "local":
        with local_store(door := door_of_store(uuid.uuid4().hex)):
            yield LocalStore(door)
        return
    server = serve(listen())
    yield TorchStore(LOOPBACK, server.port)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait for something that other threads or processes do; the limit only ends a test that has failed."""
    return wait_until


@pytest.fixture
def served_apart() -> Iterator[tuple[TorchStore, Callable[[], None]]]:
    """A store in a process of its own, and how to kill that."""
    with store_apart() as store:
        yield TorchStore(store.host, store.port), store.kill
