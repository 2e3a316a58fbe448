"""A store that is none: links planted in a directory, a server that is another one than S3's."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from moorage_state.errors import MoorageError, ObjectNotFound, StoreDenied
from moorage_state.stores import LocalStore, ObjectStore, Retries, S3Address, S3Credentials, S3Store

WHISPER = "the-other-tenants-password"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A store with folders and files of others beside it."""
    others = tmp_path / "others" / "chk-1"
    others.mkdir(parents=True)
    (others / "MANIFEST").write_text(WHISPER)
    made = LocalStore(tmp_path / "store", create=True)
    made.put("chk-2/MANIFEST", b"ours")
    return made


OPERATIONS: dict[str, Callable[[ObjectStore, str], object]] = {
    "get": lambda store, key: store.get(key),
    "head": lambda store, key: store.head(key),
    "delete": lambda store, key: store.delete(key),
    "delete_many": lambda store, key: store.delete_many([key])[key],
    "put": lambda store, key: store.put(key, b"over it"),
    "put_if_absent": lambda store, key: store.put_if_absent(f"{key}-new", b"beside it"),
    "list": lambda store, _: list(store.list("chk-1/")),
    "list_all": lambda store, _: list(store.list("")),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_folder_that_is_a_link_leads_nowhere(store: LocalStore, tmp_path: Path, operation: str):
    (store.root / "chk-1").symlink_to(tmp_path / "others" / "chk-1")
    try:
        error = OPERATIONS[operation](store, "chk-1/MANIFEST")
    except StoreDenied as refused:
        error = refused
    assert isinstance(error, StoreDenied)
    assert "put what the symbolic link leads to into its place" in str(error)
    assert [one.name for one in (tmp_path / "others" / "chk-1").iterdir()] == ["MANIFEST"]
    assert (tmp_path / "others" / "chk-1" / "MANIFEST").read_text() == WHISPER


def test_a_file_that_is_a_link_is_neither_read_nor_written_through(
    store: LocalStore, tmp_path: Path
):
    theirs = tmp_path / "others" / "chk-1" / "MANIFEST"
    (store.root / "chk-3").mkdir()
    for name in ("a", "b"):
        (store.root / "chk-3" / name).symlink_to(theirs)
    for refused in (
        lambda: store.get("chk-3/a"),
        lambda: store.head("chk-3/a"),
        lambda: list(store.list("chk-3/")),
    ):
        with pytest.raises(StoreDenied, match="symbolic link"):
            refused()
    store.put("chk-3/a", b"ours")
    store.delete("chk-3/b")
    assert store.get("chk-3/a") == b"ours"
    assert theirs.read_text() == WHISPER


def test_a_link_beside_what_is_asked_for_holds_nothing_up(store: LocalStore, tmp_path: Path):
    (store.root / "latest").symlink_to(tmp_path / "others")
    assert [one.key for one in store.list("chk-2/")] == ["chk-2/MANIFEST"]
    assert store.get("chk-2/MANIFEST") == b"ours"


def test_a_store_whose_own_directory_is_a_link_is_a_store(store: LocalStore, tmp_path: Path):
    (tmp_path / "here").symlink_to(store.root)
    assert LocalStore(tmp_path / "here").get("chk-2/MANIFEST") == b"ours"


class AnotherService(BaseHTTPRequestHandler):
    """Answers everything with its secret, in some form."""

    status, body = 200, WHISPER.encode()
    seen: ClassVar[list[str]] = []

    def _answer(self) -> None:
        self.answer_as_it_is()

    def answer_as_it_is(self) -> None:
        """Its status and body, whatever was asked."""
        self.seen.append(self.path)
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.send_header("Location", f"http://{WHISPER}.example/")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.body)

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def service() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), AnotherService)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


XML = f"<Error><Code>{WHISPER} and\nmore</Code><Message>{WHISPER}</Message></Error>"


def store_at(service: ThreadingHTTPServer) -> S3Store:
    endpoint = f"http://127.0.0.1:{service.server_port}"
    address = S3Address("latest", "meta-data", endpoint, "us-east-1", path_style=True)
    return S3Store(address, Retries(attempts=1), S3Credentials("id", "key"))


@pytest.mark.parametrize("status", [200, 301, 302, 307, 308, 400, 403, 404, 500])
@pytest.mark.parametrize("body", [f'{{"token": "{WHISPER}"}}', XML], ids=["json", "xml"])
def test_what_another_service_says_is_repeated_to_nobody(
    service: ThreadingHTTPServer, monkeypatch, status: int, body: str
):
    """Whoever may write jobs can name any address: not even an error tells what is there."""
    monkeypatch.setattr(AnotherService, "status", status)
    monkeypatch.setattr(AnotherService, "body", body.encode())
    store = store_at(service)
    for ask in (
        lambda: list(store.list("log/")),
        lambda: store.head("log/1"),
        lambda: store.put_if_absent("log/1", b""),
        lambda: store.delete_many(["log/1"]),
        lambda: status == 200 or store.get("log/1"),  # what is there is for a checksum to judge
    ):
        try:
            said = repr(ask())
        except ObjectNotFound as error:
            said = str(error)
        except MoorageError as error:
            said = str(error)
        assert WHISPER not in said
        assert len(said) < 1_000


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed_and_says_so(
    service: ThreadingHTTPServer, monkeypatch, status: int
):
    asked: list[str] = []
    monkeypatch.setattr(AnotherService, "status", status)
    monkeypatch.setattr(AnotherService, "seen", asked)
    with pytest.raises(StoreDenied, match="the endpoint leads elsewhere, such as from http to"):
        list(store_at(service).list("log/"))
    assert len(asked) == 1


def test_a_server_that_names_its_region_is_asked_again_as_it_wants_to_be(
    service: ThreadingHTTPServer, monkeypatch
):
    regions: list[str] = []
    wrong = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"
    right = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"

    def answer(handler: AnotherService) -> None:
        regions.append(handler.headers["Authorization"].split("/")[2])
        fits = regions[-1] == "eu-west-1"
        handler.status, handler.body = (200, right.encode()) if fits else (400, wrong.encode())
        AnotherService.answer_as_it_is(handler)

    monkeypatch.setattr(AnotherService, "_answer", answer)
    assert list(store_at(service).list("log/")) == []
    assert regions == ["us-east-1", "eu-west-1"]
