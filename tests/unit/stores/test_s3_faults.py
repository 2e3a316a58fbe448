"""An S3 store keeps its contract while the network and the server do not keep theirs."""

import os
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moorage_testing.fault_proxy import PASSING, Chaos, Fault, FaultProxy
from moorage_testing.s3_server import S3Server

from moorage_state.errors import (
    AlreadyExists,
    CorruptState,
    MoorageError,
    StoreUnavailable,
    UserError,
)
from moorage_state.progress import counting_retries
from moorage_state.stores import Retries, S3Store
from moorage_state.stores.s3.calls import connection_to

MIB = 1 << 20
QUICK = Retries(attempts=20, first_pause=0.001, longest_pause=0.02)
LARGE = random.Random(1).randbytes(17 * MIB + 5)


@pytest.fixture(scope="module")
def running_proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(running_proxy: FaultProxy) -> Iterator[FaultProxy]:
    yield running_proxy
    running_proxy.chaos = None
    running_proxy.forget()


@pytest.fixture
def prefix() -> str:
    return f"faults-{uuid.uuid4().hex}"


@pytest.fixture
def plain(s3_server: S3Server, prefix: str) -> S3Store:
    """The store without the proxy: what is really there."""
    return S3Store.at(s3_server.url(prefix))


@pytest.fixture
def store(s3_server: S3Server, proxy: FaultProxy, prefix: str) -> S3Store:
    """The same store through the proxy, with the probe of conditional writes behind it."""
    store = S3Store(S3Store.at(s3_server.url(prefix, endpoint=proxy.endpoint)).address, QUICK)
    store.put_if_absent("warm", b"")
    proxy.forget()
    return store


def put(store: S3Store, _: Path) -> None:
    store.put("new", b"data")
    assert store.get("new") == b"data"


def put_large(store: S3Store, home: Path) -> None:
    (home / "in").write_bytes(LARGE)
    store.put_file("new", home / "in")


def create(store: S3Store, _: Path) -> None:
    store.put_if_absent("new", b"data")


def get(store: S3Store, _: Path) -> None:
    assert store.get("small") == b"0123456789"


def get_slice(store: S3Store, _: Path) -> None:
    assert store.get("small", offset=2, length=5) == b"23456"


def get_to_file(store: S3Store, home: Path) -> None:
    store.get_to_file("small", home / "out")
    assert (home / "out").read_bytes() == b"0123456789"


def get_large(store: S3Store, home: Path) -> None:
    store.get_to_file("large", home / "out")
    assert (home / "out").read_bytes() == LARGE


def head(store: S3Store, _: Path) -> None:
    info = store.head("small")
    assert info is not None
    assert info.size == 10
    assert store.head("nothing") is None


def list_all(store: S3Store, _: Path) -> None:
    assert [i.key for i in store.list("")] == ["large", "small", "warm"]


def delete(store: S3Store, _: Path) -> None:
    store.delete("small")
    assert store.head("small") is None


def delete_many(store: S3Store, _: Path) -> None:
    assert store.delete_many(["small", "nothing"]) == {}
    assert store.head("small") is None


OPERATIONS: list[tuple[str, Callable[[S3Store, Path], None]]] = [
    ("PUT", put),
    ("POST", put_large),
    ("PUT", put_large),
    ("HEAD", put_large),
    ("PUT", create),
    ("GET", get),
    ("GET", get_slice),
    ("GET", get_to_file),
    ("GET", get_large),
    ("HEAD", head),
    ("GET", list_all),
    ("DELETE", delete),
    ("POST", delete_many),
]


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: fault.name)
@pytest.mark.parametrize(
    ("method", "operation"), OPERATIONS, ids=lambda value: getattr(value, "__name__", value)
)
def test_what_passes_is_tried_again_until_it_is_right(
    store: S3Store,
    plain: S3Store,
    proxy: FaultProxy,
    tmp_path: Path,
    fault: Fault,
    method: str,
    operation: Callable[[S3Store, Path], None],
) -> None:
    plain.put("small", b"0123456789")
    if operation in {get_large, list_all}:
        plain.put("large", LARGE)
    proxy.inject(fault, method, times=2)
    with counting_retries() as retries:
        operation(store, tmp_path)
        # A slow answer is one, and so is a cut one that nothing was missing of.
        assert retries() == 2 or fault in {Fault.SLOW, Fault.CUT_REPLY}
    assert {one for _, _, one in proxy.seen if one} == {fault}
    if operation in {put, create}:
        assert plain.get("new") == b"data"
    if operation is put_large:
        assert plain.get("new") == LARGE


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        (Fault.FORBIDDEN, UserError, "code=AccessDenied"),
        (Fault.EXPIRED, UserError, "expired"),
        (Fault.FULL, StoreUnavailable, "out of space"),
    ],
)
def test_what_does_not_pass_is_said_at_once(
    store: S3Store, plain: S3Store, proxy: FaultProxy, tmp_path: Path, fault: Fault,
    kind: type[MoorageError], text: str,
) -> None:  # fmt: skip
    plain.put("small", b"0123456789")
    proxy.inject(fault, "PUT", times=9)
    proxy.inject(fault, "GET", times=9)
    for attempt in (
        lambda: store.put("new", b""),
        lambda: store.put_if_absent("new", b""),
        lambda: store.get("small"),
        lambda: store.get_to_file("small", tmp_path / "out"),
        lambda: list(store.list("")),
    ):
        before = len(proxy.seen)
        with pytest.raises(kind, match=text):
            attempt()
        assert len(proxy.seen) == before + 1
    assert not (tmp_path / "out").exists()
    assert plain.head("new") is None


def test_a_store_that_stays_away_is_unavailable_and_not_empty(
    store: S3Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    proxy.chaos = Chaos(0, 1.0, (Fault.ERROR, Fault.CUT_REQUEST))
    for attempt in (
        lambda: store.get("small"),
        lambda: store.head("small"),
        lambda: list(store.list("")),
        lambda: store.get_to_file("small", tmp_path / "out"),
        lambda: store.put("small", b""),
        lambda: store.put_if_absent("small", b""),
        lambda: store.delete("small"),
    ):
        with pytest.raises(StoreUnavailable, match="bucket=moorage"):
            attempt()
    assert not (tmp_path / "out").exists()


def test_a_server_that_is_gone_is_unavailable(s3_server: S3Server, prefix: str) -> None:
    with FaultProxy(s3_server.endpoint) as proxy:
        endpoint = proxy.endpoint
    address = S3Store.at(s3_server.url(prefix, endpoint=endpoint)).address
    with pytest.raises(StoreUnavailable, match="does not answer"):
        S3Store(address, Retries(attempts=2, first_pause=0.001)).get("a")


@pytest.mark.parametrize("fault", [Fault.FORBIDDEN, Fault.FULL])
def test_an_upload_that_fails_half_way_leaves_neither_object_nor_parts(
    store: S3Store, plain: S3Store, proxy: FaultProxy, fault: Fault
) -> None:
    proxy.inject(fault, "PUT", "partNumber=2")
    with pytest.raises(MoorageError):
        store.put("large", LARGE)
    assert proxy.count("DELETE", "uploadId=") == 1
    assert list(plain.list("large")) == []


def test_an_upload_whose_parts_somebody_aborted_is_unavailable(
    store: S3Store, plain: S3Store, proxy: FaultProxy
) -> None:
    def abort(method: str, target: str) -> None:
        if method == "POST" and "uploadId=" in target:
            place, client = plain.address, connection_to(plain.address).client
            found = client.list_multipart_uploads(Bucket=place.bucket, Prefix=place.prefix)
            for one in found["Uploads"]:
                named = {"Key": one["Key"], "UploadId": one["UploadId"]}
                client.abort_multipart_upload(Bucket=place.bucket, **named)

    proxy.before = abort
    with pytest.raises(StoreUnavailable, match="was aborted by somebody"):
        store.put("large", LARGE)
    assert plain.head("large") is None


def test_damage_on_the_way_is_noticed_and_read_again(
    store: S3Store, plain: S3Store, proxy: FaultProxy
) -> None:
    plain.put("small", b"0123456789")
    proxy.inject(Fault.FLIPPED_BIT, "GET", times=3)
    assert store.get("small") == b"0123456789"


def test_damage_in_one_range_of_a_large_object_is_noticed_and_all_is_read_again(
    store: S3Store, plain: S3Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    plain.put("large", LARGE)
    proxy.skip_first("GET", "large")
    proxy.inject(Fault.FLIPPED_BIT, "GET", "large")
    store.get_to_file("large", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == LARGE
    assert proxy.count("GET", "large") == 1 + 3 + 3


def test_damage_that_stays_is_corruption_and_leaves_no_file(
    store: S3Store, plain: S3Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    plain.put("small", b"0123456789")
    plain.put("large", LARGE)
    proxy.chaos = Chaos(0, 1.0, (Fault.FLIPPED_BIT,))
    for key in ("small", "large"):
        with pytest.raises(CorruptState, match="checksum"):
            store.get_to_file(key, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_an_object_that_is_replaced_while_it_is_read_is_never_mixed(
    store: S3Store, plain: S3Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    plain.put("large", LARGE)
    other = os.urandom(len(LARGE))
    replaced = threading.Event()

    def replace(method: str, _: str) -> None:
        if method == "GET" and proxy.count("GET", "large") == 2 and not replaced.is_set():
            replaced.set()
            plain.put("large", other)

    proxy.before = replace
    try:
        store.get_to_file("large", tmp_path / "out")
    except StoreUnavailable:
        assert not (tmp_path / "out").exists()
    else:
        assert (tmp_path / "out").read_bytes() in {LARGE, other}


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.ERROR_AFTER, Fault.CUT_REPLY])
@pytest.mark.scenario(26)
def test_a_creation_whose_reply_was_lost_is_known_as_ones_own(
    store: S3Store, plain: S3Store, proxy: FaultProxy, fault: Fault
) -> None:
    proxy.inject(fault, "PUT", "log/1", times=3)
    store.put_if_absent("log/1", b"mine")
    assert plain.get("log/1") == b"mine"
    with pytest.raises(AlreadyExists):
        store.put_if_absent("log/1", b"again")


def test_a_creation_that_came_too_late_is_a_conflict_even_when_replies_are_lost(
    store: S3Store, plain: S3Store, proxy: FaultProxy
) -> None:
    plain.put_if_absent("log/1", b"theirs")
    proxy.inject(Fault.LOST_REPLY, "PUT", "log/1")
    proxy.inject(Fault.ERROR, "HEAD", "log/1")
    with pytest.raises(AlreadyExists):
        store.put_if_absent("log/1", b"mine")
    assert plain.get("log/1") == b"theirs"


def test_a_conflict_between_requests_is_tried_again(
    store: S3Store, plain: S3Store, proxy: FaultProxy
) -> None:
    proxy.inject(Fault.CONFLICT, "PUT", "log/1", times=2)
    store.put_if_absent("log/1", b"mine")
    assert plain.get("log/1") == b"mine"


def test_what_was_deleted_between_two_attempts_is_not_created_again(
    store: S3Store, plain: S3Store, proxy: FaultProxy
) -> None:
    """The second attempt is refused, and then nobody can tell whose object it was."""
    proxy.inject(Fault.LOST_REPLY, "PUT", "log/1")

    def delete(method: str, target: str) -> None:
        if method == "HEAD" and "log/1" in target:
            plain.delete("log/1")

    proxy.before = delete
    with pytest.raises(StoreUnavailable, match="created by somebody and deleted"):
        store.put_if_absent("log/1", b"mine")
    assert plain.head("log/1") is None


@pytest.mark.parametrize("seed", range(24))
def test_of_two_writers_exactly_one_believes_that_it_won(
    store: S3Store, plain: S3Store, proxy: FaultProxy, seed: int
) -> None:
    faults = (Fault.LOST_REPLY, Fault.ERROR_AFTER, Fault.ERROR, Fault.CUT_REQUEST, Fault.CUT_REPLY)
    proxy.chaos = Chaos(seed, 0.4, (*faults, Fault.SLOW_DOWN, Fault.CONFLICT))
    keys = [f"log/{seed}-{n}" for n in range(6)]
    believed: list[tuple[str, bytes]] = []
    unexpected: list[BaseException] = []
    ready = threading.Barrier(2)

    def write(me: bytes) -> None:
        ready.wait()
        for key in keys:
            try:
                store.put_if_absent(key, me)
                believed.append((key, me))
            except AlreadyExists:
                continue
            except BaseException as error:  # noqa: BLE001 - shown by the assertion below
                unexpected.append(error)

    writers = [threading.Thread(target=write, args=(me,)) for me in (b"one", b"two")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert unexpected == []
    assert sorted(believed) == [(key, plain.get(key)) for key in keys]


@pytest.mark.parametrize("seed", range(4))
def test_a_store_full_of_faults_gives_back_what_was_put(
    store: S3Store, plain: S3Store, proxy: FaultProxy, tmp_path: Path, seed: int
) -> None:
    proxy.chaos = Chaos(seed, 0.25)
    contents = {f"k{n}": random.Random(n).randbytes(n * 1000) for n in range(12)} | {"z": LARGE}
    for key, data in contents.items():
        store.put(key, data)
    store.delete("k3")
    del contents["k3"]
    for key, data in contents.items():
        store.get_to_file(key, tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == data == plain.get(key)
    assert {i.key: i.size for i in store.list("")} == {
        key: len(data) for key, data in contents.items()
    } | {"warm": 0}
