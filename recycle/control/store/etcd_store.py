"""The store in an etcd cluster, which outlives any machine of the run and decides by a majority of its members."""

import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from recycle.control.membership.errors import StoreLost
from recycle.control.store.etcd_cluster import EtcdCluster
from recycle.control.store.etcd_gateway import KNOWN_HERE, PATIENCE, Gateway, Json
from recycle.control.store.etcd_waits import EtcdWaits
from recycle.control.store.store import Entries, Store

LOOK, LOOK_FOR_BELLS = 1.0, 12.0
"""Seconds until it is looked whether a watch has missed something. Of bells it is long, because every host of a run
listens for them all the time. The kernel tells of a member whose host is lost; of one whose process hangs, nothing else
does."""

BATCH = 127
"""How many operations there may be in one request: one less than etcd takes, for the look whether the start counts."""

LARGEST = 1 << 20
"""How many bytes of values there may be in one: etcd takes half as much again, if nobody has told it otherwise."""

LISTED = 10_000
"""How many keys are listed with one request."""


class EtcdStore(Store):
    """A connection to the keys of a run; see Store. It must not be used on both sides of a fork.

    Where the cluster has the scope of a start of a run, nothing can be said, read or decided there once that start does
    not count any more: who was cut off while the others came to the end must not find an empty store, and go on alone.
    The same holds where etcd has lost its data.

    Requests may be carried out twice, where a member was lost before it could answer: so each is made such that this
    changes nothing.

    Args:
        cluster: where etcd is, and which keys are meant.
        prefix: of all keys, below the run's.
        patience: seconds until nobody's answer is the store's loss.
        near: an address; etcd's member there is asked first.

    Raises:
        StoreLost: no member answers or accepts this user, or the start of the run does not count any more.

    Attributes:
        identity: the number of the cluster that has answered.
    """

    def __init__(self, cluster: EtcdCluster, prefix: str = "", patience: float = PATIENCE, near: str = "") -> None:
        self._cluster = cluster
        self._below = prefix
        self._patience = patience
        self._near = near
        self._prefix = f"{cluster.prefix}{prefix}/" if prefix else cluster.prefix
        self._gateway = Gateway(cluster, patience, near)
        self._waits = EtcdWaits(self._gateway, LOOK)
        self._bells = EtcdWaits(self._gateway, LOOK_FOR_BELLS, of_bells=True)
        self._mark = _text(cluster.mark.encode())
        found = self._gateway.call("kv/range", {"key": self._mark})
        self.identity: str = found["header"]["cluster_id"]
        # What is there was created by a revision greater than 0.
        self._open = {"key": self._mark, "result": "GREATER", "target": "CREATE", "create_revision": "0"}
        self._require_open(found)

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """See Store."""
        for batch in _batches(values, values):
            self._change([self._put(key, values[key]) for key in batch])

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """See Store."""
        if len(keys) > BATCH and (all_found := self._find_between(keys)) is not None:
            return all_found
        found: list[bytes | None] = []
        for batch in _batches(keys):
            found += self._values(self._gateway.call("kv/txn", self._reads(batch)))
        return found

    def peek(self, keys: Sequence[str]) -> list[bytes | None]:
        """See Store."""
        assert len(keys) <= BATCH, "what is looked at again and again is little"
        answer = self._gateway.call_here("kv/txn", self._reads(keys, KNOWN_HERE))
        return self.get_many(keys) if answer is None else self._values(answer)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """See Store."""
        name = self._name(key)
        # What has never been created was created by revision 0.
        there = (
            {"target": "VALUE", "value": _text(expected)} if expected else {"target": "CREATE", "create_revision": "0"}
        )
        answer = self._gateway.call(
            "kv/txn",
            {
                "compare": [{"key": name, "result": "EQUAL", **there}, *([self._open] if self._cluster.scope else [])],
                "success": [self._put(key, desired)],
                "failure": [{"request_range": {"key": each}} for each in (name, self._mark)],
            },
        )
        if answer.get("succeeded"):
            return desired
        found, mark = (each["response_range"] for each in answer["responses"])
        self._require_open(mark)
        return _value(found) or b""

    def keep_first(self, values: Mapping[str, bytes]) -> list[bytes]:
        """See Store."""
        found: list[bytes] = []
        # Each is a condition of its own, and as an operation within another one it counts twice.
        for batch in _batches(values, values, BATCH // 2):
            tries = [{"request_txn": self._keep_first(key, values[key])} for key in batch]
            for key, each in zip(batch, self._change(tries), strict=True):
                told = each["response_txn"]
                kept = values[key] if told.get("succeeded") else _value(told["responses"][0]["response_range"])
                found.append(kept or b"")
        return found

    def _keep_first(self, key: str, value: bytes) -> Json:
        name = self._name(key)
        return {
            "compare": [{"key": name, "result": "EQUAL", "target": "CREATE", "create_revision": "0"}],
            "success": [self._put(key, value)],
            "failure": [{"request_range": {"key": name}}],
        }

    def exchange(self, values: Mapping[str, bytes], keys: Sequence[str]) -> list[bytes | None]:
        """See Store."""
        assert len(values) + len(keys) <= BATCH, "what is asked again and again is little"
        puts = [self._put(key, value) for key, value in values.items()]
        reads = [{"request_range": {"key": self._name(key)}} for key in keys]
        return [_value(each["response_range"]) for each in self._change([*puts, *reads])[len(puts) :]]

    def wait(self, key: str, timeout: float) -> bytes | None:
        """See Store."""
        return _value(self._waits.wait({"key": self._name(key)}, timeout))

    def hear(self, key: str, timeout: float) -> bytes | None:
        """See Store."""
        span, name = self._below_key(key.rpartition("/")[0]), self._name(key)
        return _value(self._bells.wait(span, timeout, lambda each: each["key"] == name))

    def append(self, log: str, *entries: bytes) -> None:
        """See Store."""
        # All in one key, because every reader of the log has etcd look at all its keys. It is appended when it is set
        # for the first time.
        self.set(f"{log}/{uuid.uuid4().hex}", msgspec.msgpack.encode(entries))

    def entries(self, log: str, after: int) -> Entries:
        """See Store."""
        # Revisions number all that is written, one after the other.
        order = {"sort_order": "ASCEND", "sort_target": "CREATE", "min_create_revision": str(after + 1)}
        answer = self._gateway.call("kv/range", {**self._below_key(log), **order})
        found = [(int(each["create_revision"]), entry) for each in answer.get("kvs", ()) for entry in _entries(each)]
        last = found[-1][0] if found else after
        return Entries(found, last, last)

    def wait_entry(self, log: str, after: int, timeout: float) -> bool:
        """See Store."""
        # What a watch tells of may have been appended before.
        only = {"min_create_revision": str(after + 1), "limit": "1"}
        found = self._waits.wait(self._below_key(log), timeout, lambda each: int(each["create_revision"]) > after, only)
        return "kvs" in found

    def delete(self, key: str) -> None:
        """See Store."""
        self._gateway.call("kv/deleterange", {"key": self._name(key)})

    def delete_all(self, outlived: Callable[[str], bool]) -> None:
        """See Store."""
        # Not by ranges: somebody may set a key between two of these in the meantime.
        for batch in _batches([key for key in self._keys() if outlived(key)]):
            deletions = [{"request_delete_range": {"key": self._name(key)}} for key in batch]
            self._gateway.call("kv/txn", {"success": deletions})

    def newest_change(self) -> int:
        """A number that is greater whenever a key was set since it was asked for."""
        order = {"sort_order": "DESCEND", "sort_target": "MOD", "limit": "1", "keys_only": True}
        found = self._gateway.call("kv/range", {**self._all(), **order})
        return int(found["kvs"][0]["mod_revision"]) if "kvs" in found else 0

    def clone(self) -> "EtcdStore":
        """See Store."""
        return EtcdStore(self._cluster, self._below, self._patience, self._near)

    def _put(self, key: str, value: bytes) -> Json:
        return {"request_put": {"key": self._name(key), "value": _text(value)}}

    def _change(self, operations: Sequence[Json]) -> list[Json]:
        """Carry out some operations while the start of the run counts: what is written later would be left behind."""
        request: dict[str, object] = {"success": operations}
        if self._cluster.scope:
            request |= {"compare": [self._open], "failure": [{"request_range": {"key": self._mark}}]}
        answer = self._gateway.call("kv/txn", request)
        if not answer.get("succeeded"):
            self._require_open(answer["responses"][0]["response_range"])
        return list(answer["responses"])

    def _require_open(self, mark: Json) -> None:
        if self._cluster.scope and _value(mark) is None:
            raise StoreLost(
                f"{self._cluster} has no keys of run {self._cluster.run!r}: this start of it has ended, or etcd came "
                "back without its data"
            )

    def _reads(self, keys: Sequence[str], how: Mapping[str, object] = MappingProxyType({})) -> Json:
        """To read some keys, and whether the start of the run counts."""
        mark = [self._mark] if self._cluster.scope else []
        return {"success": [{"request_range": {"key": each, **how}} for each in (*mark, *map(self._name, keys))]}

    def _values(self, answer: Json) -> list[bytes | None]:
        """What was read."""
        found = [each["response_range"] for each in answer["responses"]]
        if self._cluster.scope:
            self._require_open(found.pop(0))
        return list(map(_value, found))

    def _find_between(self, keys: Sequence[str]) -> list[bytes | None] | None:
        """The values of many keys by one reading of all from the first to the last; None where most are others.

        To etcd each key that is asked for is a request, and a range is one.
        """
        first, last = (self._prefix + each for each in (min(keys), max(keys)))
        span = {"key": _text(first.encode()), "range_end": _text(last.encode() + b"\0")}
        found = self._gateway.call("kv/range", {**span, "limit": str(min(2 * len(keys), LISTED))})
        if found.get("more"):
            return None
        values = {each["key"]: b64decode(each.get("value", "")) for each in found.get("kvs", ())}
        return [values.get(self._name(key)) for key in keys]

    def _keys(self) -> Iterator[str]:
        """All keys, in their order."""
        span, more = self._all(), True
        while more:
            found = self._gateway.call("kv/range", {**span, "limit": str(LISTED), "keys_only": True})
            names = [b64decode(each["key"]) for each in found.get("kvs", ())]
            # Where strangers write, a name may be no text.
            yield from (name.decode(errors="replace").removeprefix(self._prefix) for name in names)
            more = found.get("more", False)
            if more:
                span["key"] = _text(names[-1] + b"\0")

    def _all(self) -> dict[str, str]:
        """The range of all keys."""
        return {"key": self._name(""), "range_end": _text(self._prefix[:-1].encode() + b"0")}  # 0 comes after /

    def _below_key(self, key: str) -> dict[str, str]:
        """The range of the keys below one."""
        return {"key": self._name(f"{key}/"), "range_end": self._name(f"{key}0")}

    def _name(self, key: str) -> str:
        return _text(f"{self._prefix}{key}".encode())


def _text(value: bytes) -> str:
    """Bytes as the gateway takes them."""
    return b64encode(value).decode()


def _value(found: Json) -> bytes | None:
    return b64decode(found["kvs"][0].get("value", "")) if "kvs" in found else None


def _entries(found: Json) -> list[bytes]:
    """What was appended in one step; of a stranger's, what will be found to lack the seal."""
    stored = b64decode(found.get("value", ""))
    try:
        return msgspec.msgpack.decode(stored, type=list[bytes])
    except msgspec.DecodeError:
        return [stored]


def _batches(
    keys: Iterable[str], values: Mapping[str, bytes] = MappingProxyType({}), most: int = BATCH
) -> Iterator[list[str]]:
    """Keys in their order, as many at once as one request takes with their values."""
    batch: list[str] = []
    length = 0
    for key in keys:
        length += len(values.get(key, b""))
        if batch and (len(batch) == most or length > LARGEST):
            yield batch
            batch, length = [], len(values.get(key, b""))
        batch.append(key)
    if batch:
        yield batch
