"""Against a real web server on loopback, which is refused unless a test says that its address is public."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from motet.data.errors import MediaError
from motet.data.fetch import Address, fetch, is_public

BODY = bytes(range(256)) * 4
LOOPBACK = ("127.0.0.1",)


def is_here(address: Address) -> bool:
    return str(address) == "127.0.0.1"


def get(url: str, *, hosts: tuple[str, ...] = LOOPBACK, max_bytes: int = 1 << 20, **arguments: Any) -> bytes:
    return fetch(url, hosts=hosts, max_bytes=max_bytes, **{"is_public": is_here, "deadline_seconds": 20.0} | arguments)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What names resolve to; each look-up takes the first of the answers, and the last one stays."""
    answers: dict[str, list[str]] = {}

    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        found = answers[host].pop(0) if len(answers[host]) > 1 else answers[host][0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found.split()]

    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda h, p, *a, **k: look_up(h, p) if h in answers else real(h, p, *a, **k)
    )
    return answers


# ---- who may be asked --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",  # carrier-grade NAT
        "127.0.0.1",
        "127.255.255.255",
        "169.254.169.254",  # where clouds keep credentials
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "198.18.0.1",
        "224.0.0.1",
        "224.0.1.1",  # global multicast
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "64:ff9b::7f00:1",  # NAT64 of 127.0.0.1
        "2002:7f00:1::",  # 6to4
        "2001:0:7f00:1::",  # Teredo
        "2001:db8::1",
        "fc00::1",
        "fd12::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "9.255.255.255", "11.0.0.0", "172.15.255.255", "172.32.0.0", "192.167.255.255", "2606:4700::1"],
)
def test_addresses_that_are(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"])
def test_this_machine_is_not_asked_however_it_is_spelt(server: Any, host: str) -> None:
    server.give("/a.png", BODY)
    name = host.strip("[]")
    with pytest.raises(MediaError, match=rf"^{name} is at .*, which is not a public address; give the file's path"):
        fetch(server.url("/a.png", host), hosts=("*",), max_bytes=1000)
    assert server.asked == []


def test_only_listed_hosts_are_asked(server: Any, names: dict[str, list[str]]) -> None:
    server.give("/a.png", BODY)
    names |= {"media.test": ["127.0.0.1"], "other.media.test": ["127.0.0.1"], "xn--bcher-kva.test": ["127.0.0.1"]}
    url = server.url("/a.png", "media.test")
    for hosts in ((), ("other.test",), ("test",), ("a.media.test",)):
        with pytest.raises(MediaError, match=r"^media\.test is not in data\.url_hosts; add it, or download the file"):
            get(url, hosts=hosts)
    with pytest.raises(MediaError, match=r"^other\.media\.test is not in"):
        get(server.url("/a.png", "other.media.test"), hosts=("media.test",))
    assert server.asked == []
    for hosts in (("media.test",), ("other.test", "Media.Test"), ("*",)):
        assert get(url, hosts=hosts) == BODY
    assert get(server.url("/a.png", "MEDIA.test."), hosts=("media.test",)) == BODY
    assert get(server.url("/a.png", "Bücher.test"), hosts=("bücher.test",)) == BODY
    assert server.asked[0] == (f"media.test:{server.server_port}", "/a.png")


def test_a_name_is_looked_up_once_and_the_connection_goes_there(server: Any, names: dict[str, list[str]]) -> None:
    server.give("/a.png", BODY)
    names["media.test"] = ["127.0.0.1", "127.0.0.2"]
    assert get(server.url("/a.png", "media.test"), hosts=("*",)) == BODY
    assert names["media.test"] == ["127.0.0.2"]
    with pytest.raises(MediaError, match=r"^media\.test is at 127\.0\.0\.2, which is not a public address"):
        get(server.url("/a.png", "media.test"), hosts=("*",))


def test_one_address_that_is_not_public_is_enough(server: Any, names: dict[str, list[str]]) -> None:
    server.give("/a.png", BODY)
    names["media.test"] = ["127.0.0.1 10.0.0.1"]
    with pytest.raises(MediaError, match=r"^media\.test is at 10\.0\.0\.1, which is not"):
        get(server.url("/a.png", "media.test"), hosts=("*",))
    assert server.asked == []


def test_an_address_that_does_not_answer_is_followed_by_the_next(server: Any, names: dict[str, list[str]]) -> None:
    server.give("/a.png", BODY)
    names["media.test"] = ["127.0.0.3 127.0.0.1"]  # nobody listens at the first
    assert get(server.url("/a.png", "media.test"), hosts=("*",), is_public=lambda address: True) == BODY


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://", "not a plain http"),
        ("http:///a.png", "not a plain http"),
        ("http://user:secret@127.0.0.1/a.png", "not a plain http"),
        ("http://127.0.0.1:99999/a.png", "cannot be fetched: Port out of range"),
        ("http://[::1/a.png", "cannot be fetched: Invalid IPv6 URL"),
        ("http://127.0.0.1:1/a.png", "cannot be fetched: Connection refused"),
    ],
)
def test_bad_addresses_are_one_line(url: str, message: str) -> None:
    with pytest.raises(MediaError, match=message) as caught:
        get(url)
    assert "\n" not in str(caught.value)


# ---- redirects ---------------------------------------------------------------------------------


def redirect(server: Any, path: str, location: str, status: int = 302) -> str:
    return server.give(path, b"", status, Location=location)


def test_redirects_are_followed_five_times(server: Any) -> None:
    server.give("/0", BODY)
    for number, status in enumerate([301, 302, 303, 307, 308, 302]):
        redirect(server, f"/{number + 1}", server.url(f"/{number}") if number % 2 else f"{number}", status)
    assert get(server.url("/5")) == BODY
    with pytest.raises(MediaError, match=r"^redirects more than 5 times; download"):
        get(server.url("/6"))


@pytest.mark.parametrize(
    ("location", "message"),
    [
        (
            "http://127.0.0.2:{port}/a.png",
            r"^redirects to http://127\.0\.0\.2:\d+/a\.png: 127\.0\.0\.2 is at 127\.0\.0\.2,",
        ),
        ("http://localhost:{port}/a.png", "^redirects to http://localhost:.*: localhost is not in data.url_hosts"),
        ("file:///etc/passwd", "^redirects to file:///etc/passwd: not a plain http"),
        ("ftp://127.0.0.1/a.png", "^redirects to ftp://127.0.0.1/a.png: not a plain http"),
        ("http://127.0.0.1:{port}/gone", "^redirects to http://127.0.0.1:.*/gone: the server answers 404 Not Found"),
    ],
)
def test_a_redirect_obeys_the_same_rules(server: Any, location: str, message: str) -> None:
    server.give("/a.png", BODY)
    server.give("/gone", b"", 404)
    url = redirect(server, "/start", location.format(port=server.server_port))
    with pytest.raises(MediaError, match=message):
        get(url, hosts=("127.0.0.1", "127.0.0.2"))
    assert [path for _, path in server.asked if path == "/a.png"] == []


# ---- size and time -----------------------------------------------------------------------------


def test_sizes_up_to_the_limit_are_read(server: Any) -> None:
    url = server.give("/a", BODY)
    assert get(url, max_bytes=1024) == BODY
    with pytest.raises(MediaError, match=r"^holds more than data.max_file_bytes = 1023 bytes; raise it"):
        get(url, max_bytes=1023)


def test_the_stated_length_is_not_believed(server: Any) -> None:
    unstated = server.give("/unstated", BODY, Content_Length="")
    assert get(unstated, max_bytes=1024) == BODY
    with pytest.raises(MediaError, match=r"^holds more than data.max_file_bytes = 1023"):
        get(unstated, max_bytes=1023)
    assert get(server.give("/less", BODY, Content_Length="100")) == BODY[:100]
    with pytest.raises(MediaError, match=r"^the server sends 1024 of 2000 bytes"):
        get(server.give("/more", BODY, Content_Length="2000"))
    with pytest.raises(MediaError, match=r"^holds more than"):
        get(server.give("/huge", b"", Content_Length="9" * 30))


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(bytes(1 << 16))


def test_an_endless_body_ends_at_the_limit(server: Any) -> None:
    server.routes["/endless"] = endless
    with pytest.raises(MediaError, match=r"^holds more than data.max_file_bytes = 1048576"):
        get(server.url("/endless"))


def chunks(*parts: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    def route(handler: BaseHTTPRequestHandler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for part in parts:
            handler.wfile.write(part)

    return route


def test_chunked_bodies_are_read_and_must_be_whole(server: Any) -> None:
    server.routes["/whole"] = chunks(b"400\r\n" + BODY + b"\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n")
    assert get(server.url("/whole"), max_bytes=1027) == BODY + b"abc"
    with pytest.raises(MediaError, match=r"^holds more than data.max_file_bytes = 1026"):
        get(server.url("/whole"), max_bytes=1026)
    server.routes["/cut"] = chunks(b"400\r\n" + BODY[:100])
    with pytest.raises(MediaError, match=r"^cannot be fetched: IncompleteRead"):
        get(server.url("/cut"))


def drip(data: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    def route(handler: BaseHTTPRequestHandler) -> None:
        for at in range(len(data)):
            handler.wfile.write(data[at : at + 1])
            handler.wfile.flush()
            time.sleep(0.02)

    return route


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + bytes(5000),
        b"HTTP/1.1 200 OK\r\nX-Filler: " + b"a" * 5000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 5000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
    ],
    ids=["body", "header", "chunk size", "continue"],
)
def test_a_server_that_drips_does_not_outlive_the_deadline(server: Any, answer: bytes) -> None:
    # Each of these would take 100 s; a time-out per read would never fire.
    server.routes["/drip"] = drip(answer)
    with pytest.raises(MediaError, match=r"^not fetched within 0\.3 s; download the file and give its path"):
        get(server.url("/drip"), deadline_seconds=0.3)


def test_a_server_that_says_nothing_is_left(server: Any) -> None:
    server.routes["/silent"] = lambda handler: time.sleep(1)
    with pytest.raises(MediaError, match=r"^not fetched within 0\.2 s"):
        get(server.url("/silent"), deadline_seconds=0.2)


def test_nonsense_is_one_line(server: Any) -> None:
    server.routes["/nonsense"] = lambda handler: handler.wfile.write(b"\x00\xff nonsense\r\n\r\n")
    with pytest.raises(MediaError, match=r"^cannot be fetched: ") as caught:
        get(server.url("/nonsense"))
    assert "\n" not in str(caught.value)


def test_paths_are_quoted_and_queries_kept(server: Any) -> None:
    server.give("/a%20b/%C3%A9.png?x=%20&y=1", BODY)
    assert get(server.url("/a b/é.png?x= &y=1#part")) == BODY
    assert get(server.url("/a%20b/%C3%A9.png?x=%20&y=1")) == BODY


# ---- https -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate of `media.test`, which no one vouches for."""
    path = tmp_path_factory.mktemp("certificate") / "media.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=media.test -addext subjectAltName=DNS:media.test"
    )
    parts = subprocess.run(
        [*command.split(), "-keyout", "-", "-out", "-"], check=True, capture_output=True, text=True
    ).stdout
    path.write_text(parts)
    return path


def test_https_goes_to_the_address_and_asks_for_the_name(
    server: Any, names: dict[str, list[str]], certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[str] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.sni_callback = lambda _, name, __: asked_for.append(name)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.give("/a.png", BODY)
    names |= {"media.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]}
    url = server.url("/a.png", "media.test").replace("http:", "https:")
    with pytest.raises(MediaError, match=r"^cannot be fetched: .*certificate verify failed: self.signed"):
        get(url, hosts=("*",))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert get(url, hosts=("*",)) == BODY
    assert asked_for == ["media.test", "media.test"]
    with pytest.raises(MediaError, match=r"^cannot be fetched: .*Hostname mismatch"):
        get(url.replace("media.test", "other.test"), hosts=("*",))
    redirect(server, "/down", server.url("/a.png", "media.test"))
    with pytest.raises(MediaError, match=r"^redirects from https to http://media\.test"):
        get(url.replace("/a.png", "/down"), hosts=("*",))


def test_a_handshake_that_stalls_is_left(names: dict[str, list[str]]) -> None:
    names["media.test"] = ["127.0.0.1"]
    with socket.create_server(("127.0.0.1", 0)) as listener:  # connects, and never says a word
        url = f"https://media.test:{listener.getsockname()[1]}/a"
        with pytest.raises(MediaError, match=r"^not fetched within 0\.2 s"):
            get(url, hosts=("*",), deadline_seconds=0.2)
