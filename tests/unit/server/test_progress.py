"""Long calls: one that gets on may take any time, one that stands still is given up."""

import socket
import threading
import time
from typing import Any

import pytest

from moorage_state.errors import ServerGone
from moorage_state.progress import Progress, advance, bytes_below, carried, carrying, watching
from moorage_state.server import RangeHost, RestoreBase, UploadLimits, WrittenPart
from moorage_state.server.client import StateClient
from moorage_state.server.service import Pulse, Service
from moorage_state.snapshots import PartEntry
from moorage_state.stores.transfers import in_parallel

TOKEN = "secret"  # noqa: S105


class Slow:
    """A host whose uploads take so many steps, each after a pause."""

    def __init__(self, steps, pause):
        self.steps, self.pause = steps, pause
        self.ended = threading.Event()

    def upload_many(self, *_arguments):
        for _ in range(self.steps):
            self.ended.wait(self.pause)
            advance()
        part = PartEntry(key="part", size=1, sha256="0" * 64, files=0, bytes_total=0)
        return WrittenPart(part, [], "rocksdb", self.steps, 0, 0)

    def ping(self):
        return 1


@pytest.fixture
def connect():
    """Makes clients of a host that listens in this process; all are closed."""
    held: list[Any] = []

    def make(host, **patience):
        listener = socket.create_server(("127.0.0.1", 0))
        Service(host, TOKEN, pulse=Pulse(0.05)).listen(listener)
        address = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        client = StateClient.connect(address, TOKEN, **patience)
        held.extend([client, listener])
        return client

    yield make
    for one in held:
        one.close()


def upload(client):
    return client.upload_many("f1r0", 1, "file:///nowhere", [], UploadLimits())


def test_an_upload_that_gets_on_takes_longer_than_a_server_may_be_silent(connect):
    client = connect(Slow(steps=20, pause=0.1), store_timeout=0.8)
    began = time.monotonic()
    assert upload(client).objects == 20
    assert time.monotonic() - began > 1.6
    assert client.ping() == 1, "nothing of the call is left on the connection"


def test_an_upload_that_stands_still_is_given_up(connect):
    host = Slow(steps=1, pause=60.0)
    client = connect(host, store_timeout=0.3)
    with pytest.raises(ServerGone, match="timed out"):
        upload(client)
    host.ended.set()


def test_no_word_of_progress_comes_after_the_answer(connect):
    client = connect(Slow(steps=3, pause=0.03))
    assert [upload(client).objects for _ in range(30)] == [3] * 30


def test_steps_in_pools_count_for_the_call_that_made_them():
    progress = Progress()
    with carrying(progress):
        in_parallel([advance] * 3, 2)
        in_a_thread = carried(advance)
    assert progress.moved()
    assert not progress.moved()
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert progress.moved()
    advance()
    assert not progress.moved(), "what no call does counts for none"


def test_a_file_that_grows_is_progress_only_while_it_is_watched(tmp_path):
    progress = Progress()
    with carrying(progress), watching(lambda: bytes_below(tmp_path)):
        assert progress.moved()
        assert not progress.moved()
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").write_bytes(b"12")
        assert progress.moved()
    progress.moved()
    (tmp_path / "other").write_bytes(b"1")
    assert not progress.moved()


def test_uploads_and_restores_tell_of_themselves(drive, key, tmp_path, small):
    with RangeHost(tmp_path / "one", small) as host, RangeHost(tmp_path / "two", small) as other:
        op = drive(host)
        op.open()
        op.epoch({key(group, 1): b"v" * 10_000 for group in range(64)})
        op.range.snapshot(1, op.version)
        moved = []
        with carrying(progress := Progress()):
            handle = op.upload(1)
        moved.append(progress.moved())
        with carrying(progress := Progress()):
            drive(other, run="f2r0").open(RestoreBase(1, op.version.epoch, [handle]))
        moved.append(progress.moved())
        assert moved == [True, True]
