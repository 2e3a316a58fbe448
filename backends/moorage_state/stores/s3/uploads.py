"""Writing whole objects: in one request, or in parts at the same time.

An object is seen only when it is whole: a single request carries its length and checksum, and
parts become an object in the one step that completes them. What a killed process leaves are parts
without an object, which a bucket's own rule for incomplete multipart uploads removes.

Creating an object once: of all that try, one wins and every one of them knows who. The server
decides (If-None-Match). Each creation carries a random id in the object's metadata, so that a
second attempt after a lost reply, which the server refuses because the first one succeeded, is told
from a lost race. A server that takes the condition and ignores it would make two winners in
silence, so each bucket is put to the test once in a process before a creation is trusted.
"""

import base64
import os
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from moorage_state.errors import (
    AlreadyExists,
    CorruptState,
    LocalDiskError,
    MoorageError,
    StoreUnavailable,
    UserError,
)
from moorage_state.stores.s3.calls import Attempt, Calls, Final, code_of, status_of
from moorage_state.stores.transfers import run_windowed

ATTEMPT = "moorage-attempt"
"""The metadata that tells a writer its own object after a reply was lost."""

PARALLEL_FROM = 16 << 20
"""Objects of more bytes than this are moved in parts."""

WINDOW = 4
"""How many parts of one object are under way at a time; each is held in memory while it is sent."""

_PART_BYTES = 8 << 20
_MOST_PARTS = 10_000

_RACERS = 3
_ADVICE = (
    "use a server that honours If-None-Match on PutObject and keeps metadata: without it two runs "
    "could write one log"
)


@dataclass(frozen=True, slots=True)
class Source:
    """Bytes to be stored: `read(offset, length)` returns exactly so many, to several threads."""

    size: int
    read: Callable[[int, int], bytes]


def bytes_source(data: bytes) -> Source:
    """Return the source of bytes in memory."""
    return Source(len(data), lambda offset, length: bytes(data[offset : offset + length]))


@contextmanager
def file_source(path: Path) -> Iterator[Source]:
    """Open a local file as a source. Raises LocalDiskError, also when the file shrinks."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LocalDiskError(f"cannot read local file: path={path} error={error}") from error
    try:
        yield Source(os.fstat(descriptor).st_size, partial(_read, descriptor, path))
    finally:
        os.close(descriptor)


def _read(descriptor: int, path: Path, offset: int, length: int) -> bytes:
    chunks = []
    while length:
        try:
            chunk = os.pread(descriptor, length, offset)
        except OSError as error:
            raise LocalDiskError(f"cannot read local file: path={path} error={error}") from error
        if not chunk:
            raise LocalDiskError(f"local file shrank while it was read: path={path} size={offset}")
        chunks.append(chunk)
        offset, length = offset + len(chunk), length - len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def part_size(size: int) -> int:
    """Return the bytes of each part but the last of an object of `size` bytes."""
    needed = -(-size // _MOST_PARTS)
    return max(_PART_BYTES, -(-needed >> 20) << 20)


def crc32(data: bytes) -> str:
    """Return the checksum as S3 writes it."""
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def put_source(calls: Calls, key: str, source: Source) -> None:
    """Write the object; it is durable and whole when this returns."""
    if source.size > PARALLEL_FROM:
        _put_parts(calls, key, source)
        return
    data = source.read(0, source.size)
    checksum = crc32(data)

    def put(attempt: Attempt) -> None:
        reply = attempt.client.put_object(**attempt.target, Body=data, ChecksumCRC32=checksum)
        if problem := problem_of_stored(attempt, reply, checksum, len(data)):
            raise StoreUnavailable(f"{problem}: key={attempt.key}")

    calls.run("put", key, put)


def problem_of_stored(attempt: Attempt, reply: Mapping[str, Any], checksum: str, size: int) -> str:
    """Return what is wrong with what the server says it stored, or nothing."""
    stored = reply.get("ChecksumCRC32")
    if stored is not None:
        return "" if stored == checksum else "object was damaged on its way"
    attempt.connection.tell_once(
        "s3_store_without_checksums",
        "the server returns no checksums of what it stored: sizes are compared instead, and "
        "readers compare digests",
    )
    # All that a server without checksums can be asked.
    found = attempt.client.head_object(**attempt.target)["ContentLength"]
    return "" if found == size else f"object was stored in part: size={found}"


def _put_parts(calls: Calls, key: str, source: Source) -> None:
    own = uuid.uuid4().hex

    def create(attempt: Attempt) -> str:
        reply = attempt.client.create_multipart_upload(
            **attempt.target, Metadata={ATTEMPT: own}, ChecksumAlgorithm="CRC32"
        )
        return str(reply["UploadId"])

    upload = calls.run("create upload", key, create)
    try:
        parts = _send_parts(calls, key, source, upload)
        calls.run("complete upload", key, partial(_complete, upload, own, parts, source.size))
    except BaseException:
        _abort(calls, key, upload)
        raise


def _send_parts(calls: Calls, key: str, source: Source, upload: str) -> list[dict[str, Any]]:
    step, stop = part_size(source.size), threading.Event()

    def send(index: int) -> dict[str, Any]:
        data = source.read(index * step, min(step, source.size - index * step))
        checksum = crc32(data)

        def put(attempt: Attempt) -> dict[str, Any]:
            reply = attempt.client.upload_part(
                **attempt.target,
                UploadId=upload,
                PartNumber=index + 1,
                Body=data,
                ChecksumCRC32=checksum,
            )
            stored = reply.get("ChecksumCRC32")
            if stored not in {None, checksum}:
                raise StoreUnavailable(f"part was damaged on its way: key={key} part={index + 1}")
            part = {"PartNumber": index + 1, "ETag": reply["ETag"]}
            return part if stored is None else {**part, "ChecksumCRC32": stored}

        return calls.run("upload part", key, put, stop)

    count = -(-source.size // step)
    pool = calls.connection.pool
    return run_windowed((partial(send, index) for index in range(count)), pool, WINDOW, stop)


def _complete(
    upload: str, own: str, parts: list[dict[str, Any]], size: int, attempt: Attempt
) -> None:
    try:
        attempt.client.complete_multipart_upload(
            **attempt.target, UploadId=upload, MultipartUpload={"Parts": parts}
        )
    except Exception as error:
        # An earlier attempt may have completed it with its reply lost; else somebody aborted it.
        if code_of(error) != "NoSuchUpload" or _stored(attempt)[0] != own:
            raise
    writer, found = _stored(attempt)
    if writer in {own, None} and found != size:
        raise StoreUnavailable(f"object was stored in part: key={attempt.key} size={found}")


def _stored(attempt: Attempt) -> tuple[str | None, int]:
    """Return who wrote the object that is there, and its size; -1 when there is none."""
    try:
        reply = attempt.client.head_object(**attempt.target)
    except Exception as error:
        if status_of(error) != 404:
            raise
        return None, -1
    return reply["Metadata"].get(ATTEMPT), int(reply["ContentLength"])


def _abort(calls: Calls, key: str, upload: str) -> None:
    def abort(attempt: Attempt) -> None:
        attempt.client.abort_multipart_upload(**attempt.target, UploadId=upload)

    # What stays is for the bucket's own rule; the error that led here says more than this one.
    with suppress(MoorageError):
        calls.once().run("abort upload", key, abort)


def create_once(calls: Calls, key: str, data: bytes) -> None:
    """Create the object; see `ObjectStore.put_if_absent`.

    UserError if the store does not create once.
    """
    calls.address.object_key(key)
    _probe(calls)
    _create(calls, key, data)


def _create(calls: Calls, key: str, data: bytes) -> None:
    own, checksum = uuid.uuid4().hex, crc32(data)

    def create(attempt: Attempt) -> None:
        try:
            reply = attempt.client.put_object(
                **attempt.target,
                Body=data,
                IfNoneMatch="*",
                Metadata={ATTEMPT: own},
                ChecksumCRC32=checksum,
            )
        except Exception as error:
            if status_of(error) == 501 or code_of(error) == "NotImplemented":
                raise _refused(calls) from error
            if status_of(error) != 412:
                raise
            if not _is_mine(attempt, own, len(data)):
                text = f"object exists: store={calls.address.url} key={key}"
                raise AlreadyExists(text) from error
        else:
            if problem := problem_of_stored(attempt, reply, checksum, len(data)):
                raise _damaged(attempt, problem)

    calls.run("create", key, create)


def _is_mine(attempt: Attempt, own: str, size: int) -> bool:
    """Whether the object in the way is the one that an earlier attempt of this creation made."""
    try:
        reply = attempt.client.head_object(**attempt.target)
    except Exception as error:
        if status_of(error) != 404:
            raise
        if attempt.number == 1:
            return False
        # An earlier attempt may have made it and somebody deleted it. To create it again could
        # bring back what was deleted on purpose.
        text = f"object was created by somebody and deleted: key={attempt.key}"
        raise Final(StoreUnavailable(text)) from error
    if reply["Metadata"].get(ATTEMPT) != own:
        return False
    if reply["ContentLength"] != size:
        raise _damaged(attempt, f"object was stored in part: size={reply['ContentLength']}")
    return True


def _damaged(attempt: Attempt, problem: str) -> CorruptState:
    return CorruptState(problem, path=attempt.key, advice="delete it and have the store checked")


def _probe(calls: Calls) -> None:
    """Let several create one object at the same time, unless this bucket passed that before."""
    address = calls.address
    connection = calls.run("connect", None, lambda attempt: attempt.connection)
    with connection.probing:
        if address.bucket in connection.creates_once:
            return
        key = f"probe/{uuid.uuid4().hex}"
        try:
            _race(calls, key)
        finally:
            with suppress(MoorageError):
                calls.once().run("delete", key, _delete)
        connection.creates_once.add(address.bucket)


def _race(calls: Calls, key: str) -> None:
    def win(racer: int) -> bool:
        try:
            _create(calls, key, b"%d" % racer)
        except AlreadyExists:
            return False
        return True

    # Threads of its own: those of the pool may all be busy with parts.
    with ThreadPoolExecutor(_RACERS, "s3-probe") as pool:
        won = run_windowed((partial(win, racer) for racer in range(_RACERS)), pool, _RACERS)
    kept = calls.run("head", key, lambda one: one.client.head_object(**one.target)["Metadata"])
    if sum(won) != 1 or ATTEMPT not in kept:
        raise _refused(calls)


def _delete(attempt: Attempt) -> None:
    attempt.client.delete_object(**attempt.target)


def _refused(calls: Calls) -> UserError:
    return UserError(f"s3 store has no conditional writes: store={calls.address.url}; {_ADVICE}")
