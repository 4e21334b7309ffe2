"""http(s) GET for media that rows of unknown origin name.

Such an address must not turn this machine into a door to its own network: only listed hosts are asked, only at public
addresses, and the connection goes to the very address that was looked at. Redirects are held to the same rules.
Environment proxies are not used.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from motet.data.errors import MediaError, one_line

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

DEADLINE_SECONDS = 60.0
"""For the whole of a download, redirects included."""
MAX_REDIRECTS = 5
BLOCK_BYTES = 1 << 18
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")


def is_public(address: Address) -> bool:
    """Whether anyone on the internet could be asked at this address, and nobody but them.

    An IPv6 address that stands for an IPv4 one (mapped, NAT64, 6to4, Teredo) is not public: what it leads to depends
    on the network.
    """
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return True
    return address in GLOBAL_UNICAST and address.sixtofour is None and address.teredo is None


def fetch(
    url: str,
    *,
    hosts: Sequence[str],
    max_bytes: int,
    deadline_seconds: float = DEADLINE_SECONDS,
    is_public: Callable[[Address], bool] = is_public,
) -> bytes:
    """The bytes that `url` names.

    Args:
        hosts: which may be asked, as `data.url_hosts`; `*` is every one.
        max_bytes: of the answer, whatever its header says.
        deadline_seconds: for all of it, however slowly it drips. The look-up of a name has the resolver's own limits.
        is_public: which addresses may be asked.

    Raises MediaError, naming the address it was redirected to where it was.
    """
    ends = time.monotonic() + deadline_seconds
    here = url
    try:
        for _ in range(MAX_REDIRECTS + 1):
            answer = _get(here, hosts, max_bytes, ends, is_public)
            if isinstance(answer, bytes):
                return answer
            there = urljoin(here, answer)
            if here[:6].lower() == "https:" and there[:6].lower() != "https:":
                raise MediaError(f"redirects from https to {there}")
            here = there
    except (OSError, http.client.HTTPException, ValueError) as error:
        where = "" if here == url else f"redirects to {here[:200]}: "
        raise MediaError(where + _reason(error, deadline_seconds)) from error
    raise MediaError(f"redirects more than {MAX_REDIRECTS} times; download the file and give its path")


def _reason(error: Exception, deadline_seconds: float) -> str:
    if isinstance(error, MediaError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"not fetched within {deadline_seconds:g} s; download the file and give its path"
    return f"cannot be fetched: {one_line(error)}"


def _get(
    url: str, hosts: Sequence[str], max_bytes: int, ends: float, is_public: Callable[[Address], bool]
) -> bytes | str:
    """The body, or the address that the answer redirects to."""
    parts = urlsplit(url)
    host = _ascii(parts.hostname or "")
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
        raise MediaError("not a plain http(s) address; write http(s)://host/path")
    if "*" not in hosts and host not in map(_ascii, hosts):
        raise MediaError(f"{host} is not in data.url_hosts; add it, or download the file and give its path")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._") + (
        "?" + quote(parts.query, safe="/?%:@!$&'()*+,;=~-._[]") if parts.query else ""
    )
    name = (f"[{host}]" if ":" in host else host) + (f":{parts.port}" if parts.port else "")
    request = f"GET {target} HTTP/1.1\r\nHost: {name}\r\nUser-Agent: motet\r\nAccept: */*\r\n"
    request += "Accept-Encoding: identity\r\nConnection: close\r\n\r\n"
    with _connect(host, port, ends, is_public) as plain:
        secure = parts.scheme == "https"
        # The certificate is held against the name, though the connection went to a number.
        connection = ssl.create_default_context().wrap_socket(plain, server_hostname=host) if secure else plain
        with connection:
            connection.settimeout(_remaining(ends))
            connection.sendall(request.encode("ascii"))
            response = http.client.HTTPResponse(_Reader(connection, ends), method="GET")  # type: ignore[arg-type]
            with response:
                response.begin()
                return _body(response, max_bytes)


def _ascii(host: str) -> str:
    """One spelling of a host's name."""
    host = host.rstrip(".").lower()
    return host if host.isascii() else host.encode("idna").decode()


def _connect(host: str, port: int, ends: float, is_public: Callable[[Address], bool]) -> socket.socket:
    """Resolves once; asking again at connecting could give another address than the one looked at."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(place[0]) for *_, place in found))
    for address in addresses:
        if not is_public(ipaddress.ip_address(address)):
            raise MediaError(f"{host} is at {address}, which is not a public address; give the file's path instead")
    for address in addresses[:-1]:
        try:
            return socket.create_connection((address, port), timeout=_remaining(ends))
        except OSError:
            continue  # this host has further addresses
    return socket.create_connection((addresses[-1], port), timeout=_remaining(ends))


def _body(response: http.client.HTTPResponse, max_bytes: int) -> bytes | str:
    location = response.getheader("Location")
    if response.status in (301, 302, 303, 307, 308) and location:
        return location
    if response.status != 200:
        raise MediaError(f"the server answers {response.status} {response.reason}"[:200])
    stated = response.length
    data = bytearray()
    while stated is None or len(data) < stated:
        block = response.read1(BLOCK_BYTES if stated is None else min(BLOCK_BYTES, stated - len(data)))
        data += block
        # What the header states may be missing, or a lie.
        if max(len(data), stated or 0) > max_bytes:
            raise MediaError(f"holds more than data.max_file_bytes = {max_bytes} bytes; raise it")
        if not block:
            break
    if len(data) < (stated or 0):
        raise MediaError(f"the server sends {len(data)} of {stated} bytes; download the file and give its path")
    return bytes(data)


def _remaining(ends: float) -> float:
    seconds = ends - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


class _Reader(io.RawIOBase):
    """A socket's incoming half with a deadline for all of it: its own time-out starts anew with every byte."""

    def __init__(self, connection: socket.socket, ends: float) -> None:
        self._connection = connection
        self._ends = ends

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(_remaining(self._ends))
        return self._connection.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        """What HTTPResponse asks of a socket."""
        return io.BufferedReader(self)
