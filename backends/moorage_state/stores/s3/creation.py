"""Creating an object once: of all that try, one wins and every one of them knows who.

The server decides (If-None-Match). Each creation carries a random id in the object's metadata, so
that a second attempt after a lost reply, which the server refuses because the first one succeeded,
is told from a lost race. A server that takes the condition and ignores it would make two winners
in silence, so each bucket is put to the test once in a process before a creation is trusted.
"""

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from moorage_state.errors import (
    AlreadyExists,
    CorruptState,
    MoorageError,
    StoreUnavailable,
    UserError,
)
from moorage_state.stores.s3.calls import Attempt, Calls, Final
from moorage_state.stores.s3.failures import code_of, status_of
from moorage_state.stores.s3.uploads import ATTEMPT, crc32, problem_of_stored
from moorage_state.stores.transfers import run_windowed

__all__ = ["create_once"]

_RACERS = 3

_ADVICE = (
    "use a server that honours If-None-Match on PutObject and keeps metadata: without it two runs "
    "could write one log"
)


def create_once(calls: Calls, key: str, data: bytes) -> None:
    """Create the object or raise AlreadyExists. See `ObjectStore.put_if_absent`.

    Raises UserError when the store does not create once.
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
