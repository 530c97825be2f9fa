"""What the members tell each other: small typed messages, each sealed with the run's token.

A seal is made over the key and the content, so a message cannot be moved to another key, and who lacks the token can
make none.
"""

import hashlib
import hmac
import operator
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeVar

import msgspec

from recycle.control.membership.errors import ControlError
from recycle.control.membership.view import Member, View
from recycle.job import Job
from recycle.placement import Layout
from recycle.record.processes import clock_name

NOTHING = -1
"""The version of a member that holds no state yet."""

LARGEST_MESSAGE = 1 << 24
_SEAL = hashlib.sha256().digest_size
_PACKED, _LONG = b"\xc1", 1 << 10
"""What a packed message begins with, which no other one does, and the bytes from which on one is worth it."""
_T = TypeVar("_T")

MemberName = Annotated[str, msgspec.Meta(max_length=32)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Port = Annotated[int, msgspec.Meta(ge=1, lt=1 << 16)]
Address = tuple[Annotated[str, msgspec.Meta(max_length=100)], Port]
Epoch = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
Names = Annotated[tuple[MemberName, ...], msgspec.Meta(max_length=100_000)]
KeptVersions = Annotated[
    tuple[Annotated[tuple[Number, ...], msgspec.Meta(max_length=100)], ...], msgspec.Meta(max_length=100_000)
]
Shards = Annotated[tuple[Number, ...], msgspec.Meta(max_length=100_000)]
Chunks = Annotated[tuple[Number, ...], msgspec.Meta(max_length=100_000)]
Fingerprint = Annotated[Mapping[Annotated[str, msgspec.Meta(max_length=100)], str], msgspec.Meta(max_length=100)]


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="report"):
    """What a halted member holds, or one of its ranks.

    Attributes:
        member: who reports.
        epoch: the epoch that it halted in; while a run starts, the one before its first.
        newest: the newest version of its stage's state that it holds, or NOTHING.
        oldest: the oldest; the same, or one less.
        checkpoint: the newest durable checkpoint that it can read, as a step; None if there is none.
        stop: why the run cannot go on, as far as this member can see; empty if it can.
        kept: the versions of every stage's state that are whole in keepers, as this member sees them, by stage; empty
            where there are none.
        rank: which rank of the server says so; what is true of all its ranks is true of the member.
        closed: whether it halted where nobody can be let in, because its state is not all that a joiner would need.
        shards: of its stage's optimizer, those that it holds of the newest version; None where it holds all.
        older_shards: those that it holds of the oldest version.
        chunks: of which it holds the versions; None where those are the ones that its place in the view has.
    """

    member: MemberName
    epoch: Epoch
    newest: Annotated[int, msgspec.Meta(ge=NOTHING)]
    oldest: Annotated[int, msgspec.Meta(ge=NOTHING)]
    checkpoint: Number | None = None
    stop: str = ""
    kept: KeptVersions = ()
    rank: Number = 0
    closed: bool = False
    shards: Shards | None = None
    older_shards: Shards | None = None
    chunks: Chunks | None = None

    def __post_init__(self) -> None:
        Member.parse(self.member)
        if not self.newest - 1 <= self.oldest <= self.newest or (self.oldest == NOTHING < self.newest):
            raise ControlError(
                f"report of {self.member}: versions {self.oldest} to {self.newest}; a member holds one version, "
                "or two that follow each other"
            )

    @property
    def versions(self) -> frozenset[int]:
        """The versions that the member holds."""
        return frozenset({self.oldest, self.newest}) - {NOTHING}

    def shards_of(self, version: int) -> Shards | None:
        """The shards that the member holds of one of its versions; None where it holds all."""
        return self.shards if version == self.newest else self.older_shards


class Death(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="death"):
    """A member is declared dead, and from then on is.

    Attributes:
        member: who.
        reason: how it died, as a person would say it after its name.
        noticed: by its agent, by missing heartbeats, because it did not answer an alarm, told by itself, or by a link
            over which no data comes.
        time: of its last sign of life, on the monotonic clock of the machine that noticed.
        clock: the name of that clock.
    """

    member: MemberName
    reason: str
    noticed: Literal["agent", "heartbeat", "answer", "itself", "link"]
    time: float
    clock: str = msgspec.field(default_factory=clock_name)

    def __post_init__(self) -> None:
        Member.parse(self.member)


class Alarm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An epoch cannot go on: everybody halts, reports, and waits for the verdict.

    Attributes:
        epoch: which.
        source: who raised it.
        cause: why.
    """

    epoch: Epoch
    source: str
    cause: str


class FirstPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="first"):
    """The plan that the run started with."""

    def __str__(self) -> str:
        return "the first plan"


class CataloguePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="catalogue"):
    """A plan of the catalogue that every member has."""

    def __str__(self) -> str:
        return "the catalogue"


class PublishedPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="published"):
    """A plan that was made for this view.

    Attributes:
        author: who made it, and has published it for the epoch.
    """

    author: MemberName

    def __post_init__(self) -> None:
        Member.parse(self.author)

    def __str__(self) -> str:
        return f"made now by {self.author}"


ChosenPlan = FirstPlan | CataloguePlan | PublishedPlan
"""Where the plan of a view is; its text form is for people."""


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The one decision that begins an epoch: who is in it, and where it takes up the work.

    Attributes:
        epoch: the epoch that it begins.
        members: who is in it, by pipeline and then stage.
        step: the iteration that is done, or done again, first; every member then holds this version.
        restore: where a member that lacks the version gets it: from a peer's memory, or all from the checkpoint.
        deaths: of the members of the epoch before that are not in this one.
        joined: the members that were not in the epoch before.
        lacking: the members that need a peer's copy of the version.
        heard: up to which entry the log of the epoch before was read.
        unheard: the deaths of its members that were told behind that before it was stored, or right after; None where
            whoever reads it has to look for them, as in the store.
        plan: where the plan of this view is; None as long as nobody has chosen one.
        stop: why the run cannot go on; empty if it can.
        layout: which server holds which chunks in this view, and what pipelines bring; None where the job says it.
        held: the chunks that members hold of the version where those are not the ones that they are to hold.
    """

    epoch: Number
    members: Names
    step: Number
    restore: Literal["memory", "checkpoint"] = "memory"
    deaths: Annotated[tuple[Death, ...], msgspec.Meta(max_length=100_000)] = ()
    joined: Names = ()
    lacking: Names = ()
    heard: Number = 0
    unheard: Annotated[tuple[Death, ...], msgspec.Meta(max_length=100_000)] | None = None
    plan: ChosenPlan | None = None
    stop: str = ""
    layout: Layout | None = None
    held: Annotated[Mapping[MemberName, Chunks], msgspec.Meta(max_length=100_000)] = {}

    def __post_init__(self) -> None:
        servers = self.view.servers
        if any(map(operator.ge, servers, servers[1:])):
            raise ControlError(
                f"verdict of epoch {self.epoch}: its members are not in order, or a server is twice in it"
            )

    @cached_property
    def view(self) -> View:
        """The view that it begins."""
        return View(self.epoch, tuple(map(Member.parse, self.members)))

    def without_members(self) -> Self:
        """What somebody needs who has the verdict before; it does not grow with the number of members."""
        return msgspec.structs.replace(self, members=())

    def following(self, before: "Verdict") -> Self:
        """The whole verdict, of one without members.

        Args:
            before: the verdict before it.

        Raises:
            ControlError: it does not follow that one.
        """
        members, names = list(before.view.members), list(before.members)
        for death in self.deaths:
            place = bisect_left(members, Member.parse(death.member))
            if names[place : place + 1] != [death.member]:
                raise ControlError(f"verdict of epoch {self.epoch}: {death.member} died in it, and was not in the view")
            del members[place], names[place]
        for name in self.joined:
            member = Member.parse(name)
            place = bisect_left(members, member)
            members.insert(place, member)
            names.insert(place, name)
        whole = copy(self)
        # They are in order as they were before: to look again would take longer than all of this.
        msgspec.structs.force_setattr(whole, "members", tuple(names))
        vars(whole)["view"] = View(self.epoch, tuple(members))
        return whole


class Opening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With whom a run begins, as soon as all of them have announced themselves.

    Attributes:
        epoch: of the first view.
        members: who is awaited, by pipeline and then stage.
        restore: whether they begin with what they hold, or all from the checkpoint.
    """

    epoch: Number
    members: Names
    restore: Literal["memory", "checkpoint"] = "memory"

    @classmethod
    def of(cls, view: View, restore: Literal["memory", "checkpoint"] = "memory") -> Self:
        """Of the first view."""
        return cls(view.epoch, tuple(map(str, view.members)), restore)

    @property
    def view(self) -> View:
        """Of the start, which is an epoch like every other: its members report, and a verdict ends it."""
        return View(self.epoch - 1, tuple(Member.parse(name) for name in self.members))


class JoinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new member asks to be admitted.

    Attributes:
        member: who asks.
        epoch: of the view in which it asks; in a later one it asks again.
        attempt: how often it has asked.
        state: it asks for its stage's state, or it is ready to be admitted.
        rank: which rank of the server asks; each follows its equal in the server that serves it.
        chunk: of a member that is in the view, the chunk that it gets a copy of; None for who is to be admitted.
    """

    member: MemberName
    epoch: Number
    attempt: Number = 0
    state: Literal["asking", "synced"] = "asking"
    rank: Number = 0
    chunk: Number | None = None

    def __post_init__(self) -> None:
        Member.parse(self.member)


class MoveOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who leads a view wants chunks to be copied, so that the next one can have them elsewhere.

    Attributes:
        epoch: of the view.
        layout: who is to hold what in the next one.
    """

    epoch: Number
    layout: Layout


def complete_requests(requests: Iterable[JoinRequest], ranks: int) -> frozenset[Member]:
    """The members that are ready to be admitted: those all of whose ranks are.

    Args:
        requests: of one epoch, one for each rank that asks.
        ranks: of a server.
    """
    ready = Counter(Member.parse(each.member) for each in requests if each.state == "synced" and each.chunk is None)
    return frozenset(member for member, count in ready.items() if count == ranks)


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the run is, for whoever wants to join it.

    Attributes:
        fingerprint: what must be the same in every process, by name: model, code version and the like.
        job: the job.
    """

    fingerprint: Fingerprint
    job: Job


def differs(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Say in which point two fingerprints differ first; empty if in none."""
    for name in sorted({*theirs, *ours}):
        if theirs.get(name) != ours.get(name):
            return (
                f"{name} is {theirs.get(name, 'not given')!r}, and that of the run is {ours.get(name, 'not given')!r}"
            )
    return ""


def seal(token: str, key: str, content: object, *, packs: bool = False) -> bytes:
    """Encode a message for one key of the store, with a seal that takes the token to make.

    Args:
        token: the run's.
        key: where the message will be found.
        content: the message.
        packs: whether a long one is compressed.

    Raises:
        ControlError: it is too large.
    """
    encoded = msgspec.msgpack.encode(content)
    if packs and len(encoded) > _LONG:
        encoded = _PACKED + zlib.compress(encoded)
    _require_size(key, len(encoded))
    return _mac(token, key, encoded) + encoded


def unseal(token: str, key: str, sealed: bytes, form: type[_T]) -> _T:
    """Decode a message that was sealed for this key.

    Args:
        token: the run's.
        key: where the message was found.
        sealed: what was found.
        form: what it must be.

    Raises:
        ControlError: the seal is not of this token, key and content, or the content is not such a message.
    """
    _require_size(key, len(sealed) - _SEAL)
    mac, encoded = sealed[:_SEAL], sealed[_SEAL:]
    if not hmac.compare_digest(mac, _mac(token, key, encoded)):
        raise ControlError(f"{key}: was not made with this run's token; take the token from the run's join file")
    if encoded.startswith(_PACKED):
        encoded = zlib.decompress(encoded[len(_PACKED) :])
    try:
        return msgspec.msgpack.decode(encoded, type=form)
    except msgspec.DecodeError as error:
        raise ControlError(f"{key}: {error}; all processes of a run must run the same version") from error


def derive_key(token: str, purpose: str) -> bytes:
    """A secret for one purpose, from which the token does not follow."""
    return hmac.digest(token.encode(), b"key for " + purpose.encode(), "sha256")


def _require_size(key: str, length: int) -> None:
    if length > LARGEST_MESSAGE:
        raise ControlError(f"{key}: {length} bytes, and a message has at most {LARGEST_MESSAGE}")


def _mac(token: str, key: str, encoded: bytes) -> bytes:
    place = key.encode()
    return hmac.digest(token.encode(), len(place).to_bytes(4, "big") + place + encoded, "sha256")


def read_early(*kinds: Any) -> None:
    """Have kinds of messages understood while there is one thread.

    Two threads that met one for the first time at once would crash the process: msgspec lets the one use what the other
    has half understood of it.

    Args:
        kinds: what messages can be decoded as.
    """
    for each in kinds:
        msgspec.msgpack.Decoder(each)


read_early(*(each for each in vars().copy().values() if isinstance(each, type) and issubclass(each, msgspec.Struct)))
