"""Where the objects of a lineage lie: keys and ids, both ways.

    log/<seq, 20 digits>.json                           the lineage's log
    chk-<id>/MANIFEST                                   one checkpoint
    chk-<id>/<run>/<uid>/<start>-<end>/<name>           files of that checkpoint alone
    shared/<backend uuid>-<name>-<sha256, 16 digits>    SST files, shared by checkpoints

The run token in the names of private files keeps a stalled writer, which may still be uploading
under an id that its successor also took, from writing over the successor's files.
"""

import re

from moorage_state.stores import check_key

__all__ = [
    "LOG_PREFIX",
    "checkpoint_id_of",
    "checkpoint_path",
    "log_key",
    "log_seq",
    "manifest_key",
    "private_key",
    "run_token",
    "shared_key",
]

LOG_PREFIX = "log/"

_LOG_KEY = re.compile(r"log/([0-9]{20})\.json")
_CHECKPOINT_PATH = re.compile(r"chk-([1-9][0-9]*)(?:/MANIFEST)?")


def log_key(seq: int) -> str:
    """Return the key of the log entry number `seq` (from 1)."""
    return f"{LOG_PREFIX}{seq:020d}.json"


def log_seq(key: str) -> int | None:
    """Return the number of the log entry with this key, or None if it is no such key."""
    match = _LOG_KEY.fullmatch(key)
    return int(match[1]) if match else None


def checkpoint_path(checkpoint_id: int) -> str:
    """Return `chk-<id>`: how log entries, people and tools name a checkpoint of the lineage."""
    return f"chk-{checkpoint_id}"


def checkpoint_id_of(path: str) -> int | None:
    """Return the id in `chk-<id>` or `chk-<id>/MANIFEST`; None for any other text."""
    match = _CHECKPOINT_PATH.fullmatch(path)
    return int(match[1]) if match else None


def manifest_key(checkpoint_id: int) -> str:
    """Return the key of the checkpoint's manifest."""
    return f"{checkpoint_path(checkpoint_id)}/MANIFEST"


def private_key(checkpoint_id: int, run: str, uid: str, start: int, end: int, name: str) -> str:
    """Return the key of a file that belongs to one checkpoint and is not shared.

    Args:
        checkpoint_id: the checkpoint.
        run: the run token, see `run_token`.
        uid: the uid of the stateful operator.
        start: the first key group of the range.
        end: the last one, included.
        name: the name of the file in the database's directory.
    """
    return check_key(f"{checkpoint_path(checkpoint_id)}/{run}/{uid}/{start}-{end}/{name}")


def shared_key(backend_uuid: str, name: str, sha256: str) -> str:
    """Return the key of a file that several checkpoints may reference; equal keys, equal bytes."""
    return check_key(f"shared/{backend_uuid}-{name}-{sha256[:16]}")


def run_token(fence: int, run: int) -> str:
    """Return the token `f<fence>r<run>` that names one run and is unique in its lineage."""
    return f"f{fence}r{run}"
