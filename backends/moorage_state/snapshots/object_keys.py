"""Where the objects of a lineage lie: keys and ids, both ways.

    log/<seq, 20 digits>.json                           the lineage's log
    log/<seq, 20 digits>.moved.json                     a mark: where that log goes on
    log-view.json                                       what the log says, as of a while ago
    chk-<id>/MANIFEST                                   one checkpoint
    chk-<id>/<run>/part-<upload>                        which files one server's ranges have in it
    chk-<id>/<run>/pack-<upload>-<n>-<bytes>            small files of that checkpoint alone
    chk-<id>/<run>/<uid>/<start>-<end>/<name>           a large file of that checkpoint alone
    shared/pack-<upload>-<n>-<bytes>                    small SST files, shared by checkpoints
    shared/<backend uuid>-<name>-<sha256, 16 digits>-<upload>   a large SST file, shared
    shared/source-<sha256, 16 digits>-<upload>          a piece of a source's own log, shared

Every upload has a random id, which is in the names of all it writes. So no object is ever written
over, whoever stalled or tried again; and a deletion that comes late can only hit what nobody will
ever reference again.
"""

import re

from moorage_state.stores import check_key

LOG_PREFIX = "log/"

VIEW_KEY = "log-view.json"

_LOG_KEY = re.compile(r"log/([0-9]{20})\.json")
_MOVED_KEY = re.compile(r"log/[0-9]{20}\.moved\.json")
_ANY_LOG_KEY = re.compile(r"log/[0-9]{20}\.[a-z]+\.json")
_PACK_KEY = re.compile(
    r"(?:(?:shared|chk-[1-9][0-9]*/[^/]+)/pack|packs/(?:tables|files))-[0-9a-f]+-[0-9]+-([0-9]+)"
)
_STATE_KEY = re.compile(r"shared/[^/]+|chk-[1-9][0-9]*/(?:MANIFEST|f[0-9]+r[0-9]+/.+)")
_CHECKPOINT_PATH = re.compile(r"chk-([1-9][0-9]*)(?:/MANIFEST)?")


def log_key(seq: int) -> str:
    """Return the key of the log entry number `seq` (from 1)."""
    return f"{LOG_PREFIX}{seq:020d}.json"


def log_seq(key: str) -> int | None:
    """Return the number of the log entry with this key, or None if it is no such key."""
    match = _LOG_KEY.fullmatch(key)
    return int(match[1]) if match else None


def moved_key(base: int) -> str:
    """Return the key of the mark that the log begins after its entry number `base` by now."""
    return f"{LOG_PREFIX}{base:020d}.moved.json"


def is_moved_key(key: str) -> bool:
    """Whether the object is such a mark."""
    return _MOVED_KEY.fullmatch(key) is not None


def is_log_key(key: str) -> bool:
    """Whether some release of Moorage may have put the object into the log."""
    return _ANY_LOG_KEY.fullmatch(key) is not None


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


def private_key(
    checkpoint_id: int, run: str, uid: str, start: int, end: int, name: str, upload: str
) -> str:
    """Return the key of a file that belongs to one checkpoint and is not shared."""
    path = f"{checkpoint_path(checkpoint_id)}/{run}/{uid}/{start}-{end}/{name}-{upload}"
    return check_key(path)


def shared_key(backend_uuid: str, name: str, sha256: str, upload: str) -> str:
    """Return the key of a file that several checkpoints may reference; equal keys, equal bytes."""
    return check_key(f"shared/{backend_uuid}-{name}-{sha256[:16]}-{upload}")


def source_key(sha256: str, upload: str) -> str:
    """Return the key of a piece of a source's own log, which several checkpoints may reference."""
    return check_key(f"shared/source-{sha256[:16]}-{upload}")


def private_pack_key(checkpoint_id: int, run: str, upload: str, number: int, size: int) -> str:
    """Return the key of an object that holds several private files of one checkpoint."""
    return check_key(f"{checkpoint_path(checkpoint_id)}/{run}/pack-{upload}-{number}-{size}")


def part_key(checkpoint_id: int, run: str, upload: str) -> str:
    """Return the key of the part of a checkpoint's manifest that an upload writes."""
    return check_key(f"{checkpoint_path(checkpoint_id)}/{run}/part-{upload}")


def shared_pack_key(upload: str, number: int, size: int) -> str:
    """Return the key of an object that holds several files that checkpoints may share."""
    return check_key(f"shared/pack-{upload}-{number}-{size}")


def pack_size(key: str) -> int | None:
    """Return the size of the whole pack with this key; None if it is the key of no pack."""
    match = _PACK_KEY.fullmatch(key)
    return int(match[1]) if match else None


def is_state_key(key: str) -> bool:
    """Whether only checkpoints of a lineage have objects under this key: what a sweep looks at."""
    return _STATE_KEY.fullmatch(key) is not None


def is_shared_key(key: str) -> bool:
    """Whether several checkpoints may reference the object under this key."""
    return key.startswith("shared/")


def checkpoint_id_in(key: str) -> int | None:
    """Return the id of the checkpoint whose own object this is; None for all other keys."""
    return checkpoint_id_of(key.partition("/")[0])


def run_token(fence: int, run: int) -> str:
    """Return the token `f<fence>r<run>` that names one run and is unique in its lineage."""
    return f"f{fence}r{run}"
