"""Where servers listen and how their addresses are written, in both families of IP."""

import socket

import pytest

from moorage_state.server import ServerGroup
from moorage_state.server.addresses import EVERYWHERE, join_address, listen, split_address
from moorage_state.server.client import StateClient

needs_ipv6 = pytest.mark.skipif(
    not socket.has_dualstack_ipv6(), reason="the kernel of this machine has no IPv6"
)


@pytest.mark.parametrize(
    ("host", "text"),
    [("10.0.0.7", "10.0.0.7:7790"), ("fd00::1", "[fd00::1]:7790"), ("node", "node:7790")],
)
def test_a_host_of_either_family_is_read_as_it_was_written(host, text):
    assert join_address(host, 7790) == text
    assert split_address(text) == (host, 7790)


def test_brackets_are_not_put_twice():
    assert join_address("[fd00::1]", 1) == "[fd00::1]:1"


@pytest.mark.parametrize("text", ["", "host", ":1", "fd00::1", "fd00::1:7790", "[]:1", "[host]:1"])
def test_what_could_be_read_in_two_ways_is_no_address(text):
    assert split_address(text) is None


@needs_ipv6
@pytest.mark.parametrize("remote", ["127.0.0.1", "::1"])
def test_who_listens_everywhere_is_reached_over_both_families(remote):
    with listen(EVERYWHERE, 0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((remote, port), 5):
            pass


def test_without_ipv6_everywhere_is_ipv4(monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listen(EVERYWHERE, 0) as listener:
        assert listener.family == socket.AF_INET


@needs_ipv6
def test_a_state_server_is_reached_over_ipv6(tmp_path, small):
    with ServerGroup(1, tmp_path, backend=small, tcp_host="::1") as group:
        (address,) = group.tcp_addresses
        assert address.startswith("tcp:[::1]:")
        with StateClient.connect(address, group.token) as client:
            assert client.ping() == group.pids[0]
