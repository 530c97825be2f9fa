"""Which addresses others reach a host at: what names stand for, and what a machine has."""

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.control.membership.addresses import (
    NamedHost,
    OwnAddress,
    answers,
    choose_own,
    family_of,
    is_loopback,
    judge,
    listen_at,
    listen_by_name,
    place,
    reach,
)

ADDRESSES = st.one_of(
    st.ip_addresses().map(str),
    st.ip_addresses(network="127.0.0.0/8").map(str),
    st.ip_addresses(network="fe80::/64").map(str),
    st.just("::1"),
)


ONE_LINK = ipaddress.ip_network("fe80::/10")


def found(*addresses):
    """What ``getaddrinfo`` answers, each address once for each of two protocols."""
    return [
        (family_of(each), kind, 0, "", (each, 0) if family_of(each) == socket.AF_INET else (each, 0, 0, 0))
        for each in addresses
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
    ]


@given(st.lists(ADDRESSES))
def test_of_the_addresses_of_a_name_those_are_tried_that_others_may_reach_and_ipv4_first(addresses):
    host = judge("host1", found(*addresses))
    assert len(set(host.addresses)) == len(host.addresses)
    assert set(host.addresses) <= set(addresses)
    families = [family_of(each) for each in host.addresses]
    assert families == sorted(families)
    usable = {each for each in addresses if ipaddress.ip_address(each) not in ONE_LINK}
    others = {each for each in usable if not is_loopback(each)}
    assert set(host.addresses) == (others or usable)
    # Only a machine itself knows itself by nothing else.
    assert host.misleads == (bool(usable) and not others)


@given(st.lists(ADDRESSES), st.randoms(use_true_random=False))
def test_hosts_that_get_the_same_answers_in_another_order_use_the_same_family(addresses, random):
    shuffled = random.sample(addresses, len(addresses))
    one, other = judge("host1", found(*addresses)), judge("host1", found(*shuffled))
    assert set(one.addresses) == set(other.addresses)
    assert [*map(family_of, one.addresses)] == [*map(family_of, other.addresses)]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "127.0.1.1", "localhost.localdomain", "a.localhost"])
def test_a_loopback_that_was_asked_for_misleads_nobody(name):
    assert judge(name, found("::1", "127.0.0.1")) == NamedHost(name, ("127.0.0.1", "::1"))


LOOPBACK = OwnAddress("lo", "127.0.0.1")


@pytest.mark.parametrize(
    ("own", "preferred", "chosen"),
    [
        (["10.0.0.1"], [], "10.0.0.1"),
        (["fd00::1"], [], "fd00::1"),
        (["fd00::1", "10.0.0.1"], [], "10.0.0.1"),
        (["10.0.0.1", "172.17.0.1"], ["172.17.0.1"], "172.17.0.1"),
        (["10.0.0.1", "172.17.0.1"], ["fd00::1"], None),
        (["fd00::1", "fd00::2"], ["fd00::2"], "fd00::2"),
        ([], [], None),
    ],
)
def test_the_address_at_which_others_reach_a_machine_is_the_only_one_or_that_which_it_uses_itself(
    own, preferred, chosen
):
    assert choose_own([LOOPBACK, *(OwnAddress("eth0", each) for each in own)], preferred) == chosen


@given(st.lists(ADDRESSES, unique=True), st.lists(ADDRESSES))
def test_an_address_that_is_chosen_is_one_of_the_machines_and_no_loopback(own, preferred):
    chosen = choose_own([OwnAddress("eth0", each) for each in own], preferred)
    assert chosen is None or (chosen in own and not is_loopback(chosen))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_who_listens_at_an_address_is_reached_there_by_it_and_by_name(address):
    if address == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with listen_at(address, 0) as listener:
        port = listener.getsockname()[1]
        assert reach(address, port, 60) == address
    with pytest.raises(OSError, match="refused"):
        reach(address, port, 60)


def test_a_name_of_one_address_is_listened_at_there_and_one_that_misleads_everywhere(monkeypatch):
    with listen_by_name("127.0.0.1", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found("127.0.1.1"))
    with listen_by_name("host1", 0) as listener:
        assert listener.getsockname()[0] in ("::", "0.0.0.0")


def test_an_address_with_a_port_reads_as_people_write_it():
    assert place("10.0.0.1", 5) == "10.0.0.1:5"
    assert place("fd00::1", 5) == "[fd00::1]:5"


def test_a_host_answers_whether_anybody_listens_or_not(monkeypatch):
    assert answers("127.0.0.1", 60)
    with listen_at("127.0.0.1", 0) as listener:
        monkeypatch.setattr("recycle.control.membership.addresses.ANY_PORT", listener.getsockname()[1])
        assert answers("127.0.0.1", 60)

    def nothing(*_):
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", nothing)
    assert not answers("127.0.0.1", 60)
