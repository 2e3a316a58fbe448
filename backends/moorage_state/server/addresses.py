"""Addresses of servers as text, `host:port`, and sockets that listen on them.

An IPv6 host stands in brackets, `[fd00::1]:7790`, as everywhere where a port follows. Pure but for
`listen`; called by servers, their clients and whoever tells one the address of the other.
"""

import socket

EVERYWHERE = "*"
"""In place of a host: every address of this machine, of both families."""


def bracketed(host: str) -> str:
    """The host as it stands before a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def join_address(host: str, port: int) -> str:
    """`host:port`; the host may have brackets already."""
    return f"{bracketed(host)}:{port}"


def split_address(where: str) -> tuple[str, int] | None:
    """Host, without brackets, and port; None if it is no address."""
    host, _, port = where.rpartition(":")
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not inner or not port.isdecimal() or (":" in inner) != (inner != host):
        return None
    return inner, int(port)


def listen(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """A listening TCP socket; port 0 is any. Raises OSError.

    `EVERYWHERE` for a host listens on IPv4 and, where there is any, on IPv6.
    """
    if host != EVERYWHERE:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=backlog)
    if not socket.has_dualstack_ipv6():
        return socket.create_server(("", port), backlog=backlog)
    return socket.create_server(
        ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
    )
