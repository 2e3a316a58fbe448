"""Writing whole objects: in one request, or in parts at the same time.

An object is seen only when it is whole: a single request carries its length and checksum, and
parts become an object in the one step that completes them. What a killed process leaves are parts
without an object, which `sweep_uploads` removes (and a bucket's own rule for incomplete multipart
uploads, which every bucket should have).
"""

import base64
import os
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from moorage_state.errors import LocalDiskError, MoorageError, StoreUnavailable
from moorage_state.stores.s3.calls import Attempt, Calls
from moorage_state.stores.s3.failures import code_of, status_of
from moorage_state.stores.transfers import run_windowed

__all__ = [
    "ATTEMPT",
    "PARALLEL_FROM",
    "WINDOW",
    "Source",
    "bytes_source",
    "crc32",
    "file_source",
    "part_size",
    "problem_of_stored",
    "put_source",
    "sweep_uploads",
]

ATTEMPT = "moorage-attempt"
"""The metadata that tells a writer its own object after a reply was lost."""

PARALLEL_FROM = 16 << 20
"""Objects of more bytes than this are moved in parts."""

WINDOW = 4
"""How many parts of one object are under way at a time; each is held in memory while it is sent."""

_PART_BYTES = 8 << 20
_MOST_PARTS = 10_000


@dataclass(frozen=True, slots=True)
class Source:
    """Bytes to be stored.

    Attributes:
        size: how many.
        read: returns exactly `length` of them from `offset`; called from several threads.
    """

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
    """Return what is wrong with what the server says it stored, or nothing.

    A server that has no checksums is asked for the size, and the log says so once.
    """
    stored = reply.get("ChecksumCRC32")
    if stored is not None:
        return "" if stored == checksum else "object was damaged on its way"
    attempt.connection.tell_once(
        "s3_store_without_checksums",
        "the server returns no checksums of what it stored: sizes are compared instead, and "
        "readers compare digests",
    )
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

    # What stays is swept later; the error that led here says more than one of tidying up.
    with suppress(MoorageError):
        calls.once().run("abort upload", key, abort)


def sweep_uploads(calls: Calls, older_than: timedelta, now: datetime) -> int:
    """Abort the uploads below the address that began longer ago, and return how many."""
    prefix = f"{calls.address.prefix}/" if calls.address.prefix else ""
    found = calls.run("list uploads", None, partial(_uploads, prefix))
    old = [one for one in found if now - one["Initiated"] > older_than]
    for one in old:

        def abort(attempt: Attempt, key: str = one["Key"], upload: str = one["UploadId"]) -> None:
            attempt.client.abort_multipart_upload(Bucket=attempt.bucket, Key=key, UploadId=upload)

        calls.run("abort upload", None, abort)
    return len(old)


def _uploads(prefix: str, attempt: Attempt) -> list[dict[str, Any]]:
    pages = attempt.client.get_paginator("list_multipart_uploads")
    return [
        upload
        for page in pages.paginate(Bucket=attempt.bucket, Prefix=prefix)
        for upload in page.get("Uploads", [])
    ]
