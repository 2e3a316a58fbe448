"""Writing: a savepoint out of tables, to start a new job with state or to repair an old one's.

The new savepoint holds the operators that are given, and of a base everything else as it was. All
of it is made and checked in a scratch directory before the first byte is stored; the manifest comes
last.
"""

import re
import tempfile
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from moorage import __version__
from moorage.state.operator_files import BuiltOperator, OperatorTables, build_operator
from moorage.state.snapshot_path import Snapshot, locate
from moorage_state.canonical import handle_of, upload_files
from moorage_state.errors import UserError
from moorage_state.keygroups import default_max_parallelism, range_of
from moorage_state.server.restore import fetch_all
from moorage_state.snapshots import (
    FileRef,
    Manifest,
    OperatorState,
    RangeHandle,
    SavepointStore,
    checkpoint_id_of,
    savepoint_key,
)
from moorage_state.stores import ObjectStore, open_store
from moorage_state.stores.addresses import address, parent_and_name

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


def write_savepoint(
    path: str | Path,
    operators: Mapping[str, OperatorTables | None],
    *,
    base: str | Path | None = None,
    parallelism: int | None = None,
    max_parallelism: int | None = None,
    job_name: str = "",
) -> str:
    """Make a canonical savepoint in the new directory `path`; returns its address.

    Args:
        path: an address or a path of the file system; its last segment is the savepoint's name.
        operators: by uid, what it shall have. With a base: an operator that is not named is kept
            as it is, None drops it, and of one that is named all states are kept that are neither
            given nor dropped.
        base: a savepoint or checkpoint whose inputs, offsets, watermarks and other operators are
            kept. Without one a job begins at the start of its inputs, with this state.
        parallelism: in how many ranges an operator that is written is stored; any job may restore
            it with any other. That of the base, or 1.
        max_parallelism: the number of key groups; fixed for the job that restores it. That of the
            base, or Flink's default for `parallelism`.

    Raises:
        UserError: the directory is not empty; a table does not fit its state, has nulls or two
            rows for one place; a name, type or number is not allowed; or see `read` for `base`.
        CorruptState: something of `base` is missing or damaged.
        StoreUnavailable: a store does not answer.
        LocalDiskError: the scratch directory is full; set TMPDIR to a larger volume.
    """
    url = address(path)
    origin = locate(base) if base is not None else None
    _, name = parent_and_name(url) or ("", "")
    blank = _blank(name, origin, parallelism, max_parallelism, job_name)
    kept = _kept(operators, origin)
    target = SavepointStore(url, create=True)
    target.check_empty()
    with tempfile.TemporaryDirectory(prefix="moorage-savepoint-") as scratch:
        folder = Path(scratch)
        built = {
            uid: build_operator(uid, tables, blank, origin, parallelism, folder)
            for uid, tables in operators.items()
            if tables is not None
        }
        # All operators are built and checked by now: a mistake leaves the directory as it was.
        target.begin(uuid.uuid4().hex)
        states = {uid: _stored(target.store, one) for uid, one in built.items()}
        if origin is not None:
            states |= {uid: _copied(target.store, origin, uid, folder) for uid in kept}
    target.create(replace(blank, operators=dict(sorted(states.items()))))
    return target.url


def _blank(
    name: str,
    origin: Snapshot | None,
    parallelism: int | None,
    max_parallelism: int | None,
    job_name: str,
) -> Manifest:
    """The manifest without operators."""
    if not name or checkpoint_id_of(name) is not None:
        raise UserError(
            f"a savepoint needs a directory with a name of its own, which is not that of a "
            f"checkpoint: name={name!r}"
        )
    if origin is None:
        groups = max_parallelism or default_max_parallelism(parallelism or 1)
        blank = Manifest(
            lineage=uuid.uuid4().hex,
            checkpoint_id=1,
            epoch=0,
            fence=1,
            run=0,
            created_at=datetime.now(UTC),
            job_name=job_name,
            moorage_version=__version__,
            max_parallelism=groups,
            operators={},
            source={},
        )
    else:
        blank = origin.manifest.in_one
        if max_parallelism not in (None, blank.max_parallelism):
            raise UserError(
                f"max_parallelism is fixed by the base: base={origin.path} "
                f"found={blank.max_parallelism} given={max_parallelism}; leave it out"
            )
    try:
        range_of(0, 1 if parallelism is None else parallelism, blank.max_parallelism)
    except ValueError as error:
        raise UserError(str(error)) from error
    return replace(
        blank,
        kind="savepoint",
        name=name,
        created_at=datetime.now(UTC),
        job_name=job_name or blank.job_name,
        moorage_version=__version__,
    )


def _kept(operators: Mapping[str, OperatorTables | None], origin: Snapshot | None) -> list[str]:
    """The operators of the base that are not named."""
    there = set(origin.manifest.operators) if origin is not None else set()
    for uid, tables in operators.items():
        if not _UID.match(uid):
            raise UserError(
                f"a uid starts with a letter or digit and has up to 63 letters, digits, dots, "
                f"dashes or underscores: uid={uid!r}"
            )
        if tables is None and uid not in there:
            raise UserError(
                f"cannot drop an operator that the base does not have: uid={uid} "
                f"there are: {sorted(there)}"
            )
    return sorted(there - set(operators))


def _stored(store: ObjectStore, built: BuiltOperator) -> OperatorState:
    """The operator with its files in the savepoint."""
    return OperatorState(
        parallelism=built.parallelism,
        key_types=list(built.key_types),
        states=list(built.states),
        operator_states=list(built.operator_states),
        owners=list(built.owners),
        subtasks=[handle_of(spec, upload_files(made, spec, store)) for spec, made in built.ranges],
    )


def _copied(store: ObjectStore, base: Snapshot, uid: str, folder: Path) -> OperatorState:
    """An operator of the base with its files, whatever their format, in the new savepoint."""
    source = open_store(base.store_url)
    operator = base.manifest.operators[uid]

    def copied(handle: RangeHandle) -> RangeHandle:
        files = [_copy(source, store, handle, ref, folder) for ref in handle.files]
        return replace(handle, files=files)

    return replace(operator, subtasks=[copied(handle) for handle in operator.subtasks])


def _copy(
    source: ObjectStore, store: ObjectStore, handle: RangeHandle, ref: FileRef, folder: Path
) -> FileRef:
    if ref.inline is not None:
        return replace(ref, shared=False)
    fetch_all(source, [ref], folder)
    key = savepoint_key(handle.uid, handle.start, handle.end, ref.name)
    store.put_file(key, folder / ref.name)
    (folder / ref.name).unlink()
    return replace(ref, key=key, offset=0, shared=False)
