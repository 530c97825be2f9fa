"""Where an etcd cluster is, as a user says it."""

import re
from ipaddress import AddressValueError, IPv6Address
from typing import Self
from urllib.parse import parse_qs, quote, unquote

import msgspec

from recycle.control.membership.addresses import is_own_name
from recycle.control.membership.errors import ControlError

PORT = 2379
ROOT = "/recycle"
"""Above the keys of all runs."""

VARIABLE = "RECYCLE_STORE"
"""Of the environment, for a cluster whose password no list of processes is to show."""

MARK = "open"
"""The name, below a start of a run, of the key that says that it counts."""

_SCHEMES = {"etcd": False, "etcds": True}
# As RFC 3986 has it, but for several hosts, which urllib refuses where a bracketed one is not the first.
_TEXT = re.compile(
    r"(?P<scheme>\w+)://(?:(?P<who>[^/?#\[\]]*)@)?(?P<where>[^@/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?"
)
_MEMBER = re.compile(r"(?:\[(?P<address>[^\[\]]+)\]|(?P<name>[^\[\]:]+))(?::(?P<port>[0-9]{1,5}))?")
_OPTIONS = {"ca": "authorities", "cert": "certificate", "key": "key"}


class EtcdCluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The members of an etcd cluster, how they let one in, and which of the keys there are meant.

    Attributes:
        members: host and port of each.
        run: the name of the run whose keys are meant; empty where the user has given none.
        scope: below the run's name, for the keys of one start of it; empty for all.
        identity: the number of the cluster, as its members say it; empty for whichever answers.
        user: etcd's user; empty where it asks for none.
        password: of the user.
        tls: whether connections are encrypted.
        authorities: the file of the authorities whose certificates count; empty for those of the machine.
        certificate: the file of the certificate that is shown to etcd; empty for none.
        key: the file of its key.
    """

    members: tuple[tuple[str, int], ...]
    run: str = ""
    scope: str = ""
    identity: str = ""
    user: str = ""
    password: str = ""
    tls: bool = False
    authorities: str = ""
    certificate: str = ""
    key: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what a user says: ``etcd://[user:password@]host[:port],host[:port],...[/run]``.

        With ``etcds://`` connections are encrypted, and ``?ca=FILE&cert=FILE&key=FILE`` may follow.

        Raises:
            ControlError: it is no such text.
        """
        refusal = ControlError(
            f"store {_without_password(text)!r}: give etcd://HOST:PORT,HOST:PORT,..., with USER:PASSWORD@ before the "
            "first host where etcd asks for it (other characters than letters and digits as %XX), and "
            "etcds://...?ca=FILE&cert=FILE&key=FILE for TLS"
        )
        if (parts := _TEXT.fullmatch(text)) is None or (scheme := parts["scheme"].lower()) not in _SCHEMES:
            raise refusal
        members = tuple(_member(each) for each in parts["where"].split(",") if each)
        options = {name: values[-1] for name, values in parse_qs(parts["query"] or "").items()}
        if None in members or not members or not options.keys() <= _OPTIONS.keys():
            raise refusal
        if options and not _SCHEMES[scheme]:
            raise ControlError(f"store {_without_password(text)!r}: files of TLS are given; begin with etcds://")
        user, _, password = (parts["who"] or "").partition(":")
        return cls(
            members=tuple(each for each in members if each is not None),
            run=unquote(parts["path"].strip("/")),
            user=unquote(user),
            password=unquote(password),
            tls=_SCHEMES[scheme],
            **{_OPTIONS[name]: value for name, value in options.items()},
        )

    @property
    def prefix(self) -> str:
        """Of the keys that are meant."""
        # A name with a slash must not lie below another one.
        return "".join(f"{each}/" for each in (ROOT, quote(self.run, safe=""), self.scope) if each)

    @property
    def tells_password(self) -> bool:
        """Whether whoever listens to the network between this host and a member learns the password."""
        return bool(self.password) and not self.tls and not all(is_own_name(host) for host, _ in self.members)

    @property
    def mark(self) -> str:
        """The key that is there for as long as the start of the run is the one that counts."""
        return f"{self.prefix}{MARK}"

    def __str__(self) -> str:
        """Without the password."""
        return f"etcd at {', '.join(f'{host}:{port}' for host, port in self.members)}"


def _member(text: str) -> tuple[str, int] | None:
    if (parts := _MEMBER.fullmatch(text)) is None:
        return None
    port = PORT if parts["port"] is None else int(parts["port"])
    try:
        host = parts["name"] or str(IPv6Address(parts["address"]))
        host.encode("idna")
    except (AddressValueError, UnicodeError):
        return None
    return (host, port) if 0 < port < 1 << 16 else None


def _without_password(text: str) -> str:
    scheme, slashes, rest = text.partition("://")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}"
