"""`moorage.state`: reading checkpoints and savepoints, and writing savepoints out of tables."""

import datetime
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from moorage_testing.fake_range import FakeRange
from moorage_testing.manifests import checkpoint_manifest
from moorage_testing.parts import handles_of

import moorage.state.reader
import moorage.state.snapshot_path
from moorage import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from moorage.state import OperatorTables, list_states, locate, read, write_savepoint
from moorage_state.canonical import CanonicalSpec, frames_of, key_groups
from moorage_state.deltas import Frame, encode_frame
from moorage_state.errors import CorruptState, StoreUnavailable, UserError
from moorage_state.keyed import KeyedStateStore
from moorage_state.keygroups import range_of
from moorage_state.keylayout import key_prefix
from moorage_state.keys import KeyCodec
from moorage_state.rocks import RocksOptions
from moorage_state.server import (
    RangeHost,
    RangeSpec,
    RestoreBase,
    UploadLimits,
    UploadRequest,
    Version,
)
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    Manifest,
    OperatorState,
    Owner,
    RangeHandle,
    SavepointStore,
    StateMeta,
)
from moorage_state.state_backends import EmbeddedRocksDBStateBackend
from moorage_state.stores import LocalStore, ObjectStore

SEEN = ValueStateDescriptor("seen", "bigint")
PAGES = ListStateDescriptor("pages", "string")
BY_DAY = MapStateDescriptor("by_day", "date", "double")


@pytest.fixture(autouse=True)
def no_scratch_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test does, nothing stays in the temporary directory."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield
    assert list(scratch.iterdir()) == []


@pytest.fixture
def lineage(
    tmp_path: Path, small: RocksOptions, written: Any, spec: CanonicalSpec
) -> Callable[..., Path]:
    """A checkpoint directory with native checkpoints 1 and 2 of `visits`, in two ranges."""

    def make(limits: UploadLimits | None = None) -> Path:
        directory = tmp_path / "lineage"
        store = LocalStore(directory, create=True)
        writer = LogWriter.claim(store, Owner("here", "default", "visits", "u"), "test")
        with RangeHost(tmp_path / "local", EmbeddedRocksDBStateBackend(tuned=small)) as host:
            for checkpoint_id, keys in ((1, 10), (2, 60)):
                handles = [
                    _checkpointed(host, n, checkpoint_id, written(keys), store, limits)
                    for n in range(2)
                ]
                manifest = _manifest(writer, checkpoint_id, spec, handles)
                now = datetime.datetime.now(UTC)
                CheckpointStore(store).complete(writer, manifest, now)
        return directory

    return make


def _checkpointed(
    host: RangeHost,
    subtask: int,
    checkpoint_id: int,
    frames: list[Frame],
    store: LocalStore,
    limits: UploadLimits | None,
) -> RangeHandle:
    groups, run = range_of(subtask, 2, 16), f"f1r{checkpoint_id}"
    spec = RangeSpec("visits", groups.start, groups.end)
    host.open_range(spec, run, None, [], store.url, 6)
    mine = [
        (key, value)
        for frame in frames
        for key, value in zip(frame.keys, frame.values, strict=True)
        if int.from_bytes(key[:2], "big") in groups
    ]
    frame = encode_frame([], [key for key, _ in mine], [value for _, value in mine])
    opened = host.range(spec.lease(run))
    opened.stage(7, "a", frame, 0)
    digest = opened.prepare(7, "a", "", 1).digest
    opened.commit(7, digest)
    opened.snapshot(checkpoint_id, Version(7, digest))
    requests = [UploadRequest("visits", groups.start, [])]
    uploaded = host.upload_many(run, checkpoint_id, store.url, requests, limits or UploadLimits())
    return handles_of(store.url, uploaded)[0]


def _manifest(
    writer: LogWriter, checkpoint_id: int, spec: CanonicalSpec, handles: list[RangeHandle]
) -> Manifest:
    operator = OperatorState(
        parallelism=2,
        key_types=list(spec.key_types),
        states=list(spec.states),
        subtasks=handles,
    )
    return checkpoint_manifest(
        writer.lineage,
        checkpoint_id,
        fence=writer.fence,
        epoch=7,
        max_parallelism=16,
        operators={"visits": operator},
        source={"files": "offsets"},
        watermarks={"in": 5},
    )


def counts(rows: int = 100) -> pa.Table:
    names = [f"user-{n}" for n in range(rows)]
    return pa.table({"key": names, "value": list(range(rows))})


@pytest.fixture
def savepoint(tmp_path: Path) -> str:
    """A savepoint of one operator with all kinds of state, in three ranges."""
    pages = pa.table({"key": ["a", "b", "a"], "value": ["p1", "p2", "p3"]})
    day = pa.array([datetime.date(2026, 1, 1)] * 2)
    by_day = pa.table({"key": ["a", "b"], "map_key": day, "value": [1.5, float("nan")]})
    timers = pa.table({"key": ["b", "a", "b"], "time": [20, 5, 10]})
    tables = OperatorTables(
        states=[(SEEN, counts()), (PAGES, pages), (BY_DAY, by_day)],
        key_types=["string"],
        timers=timers,
    )
    return write_savepoint(tmp_path / "sp-1", {"visits": tables}, parallelism=3)


def by_key(table: pa.Table) -> dict[Any, Any]:
    return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def test_a_savepoint_that_was_written_is_read(savepoint: str) -> None:
    assert by_key(read(savepoint, "visits", "seen")) == {f"user-{n}": n for n in range(100)}
    pages = read(savepoint, "visits", "pages").to_pylist()
    assert [row["value"] for row in pages if row["key"] == "a"] == ["p1", "p3"]
    timers = read(savepoint, "visits", "_timers").to_pylist()
    found = sorted((row["key"], row["kind"], row["time"]) for row in timers)
    assert found == [("a", "event_time", 5), ("b", "event_time", 10), ("b", "event_time", 20)]
    SavepointStore(savepoint).verify(full=True)


@pytest.mark.parametrize(
    "limits", [None, UploadLimits(inline_range=0, inline_file=0, merge_below=0)], ids=["packed", ""]
)
def test_a_native_checkpoint_is_read_like_a_savepoint(
    lineage: Callable[..., Path], limits: UploadLimits | None
) -> None:
    directory = lineage(limits)
    old = read(f"{directory}/chk-1", "visits", "visit")
    new = read(directory, "visits", "visit")
    assert (old.num_rows, new.num_rows) == (10, 60)
    assert by_key(old)["user-9"]["n"] == 6
    timers = read(directory / "chk-2", "visits", "_timers", keys=["user-5"])
    assert timers["time"].to_pylist() == [-500, 500]


@pytest.mark.usefixtures("savepoint")
def test_a_copied_savepoint_reads_the_same(tmp_path: Path) -> None:
    (tmp_path / "sp-1").rename(tmp_path / "elsewhere")
    assert read(tmp_path / "elsewhere", "visits", "seen").num_rows == 100


@pytest.mark.usefixtures("savepoint")
def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert read("../sp-1", "visits", "seen").num_rows == 100


def test_what_there_is_is_listed(savepoint: str, lineage: Callable[..., Path]) -> None:
    kinds = {info.state: (info.kind, info.type) for info in list_states(savepoint)}
    assert kinds == {
        "seen": ("value", "bigint"),
        "pages": ("list", "string"),
        "by_day": ("map", "double"),
        "_timers": ("timers", "bigint"),
    }
    formats = {info.format for path in (savepoint, lineage()) for info in list_states(path)}
    assert formats == {"canonical", "native"}


def test_single_keys_are_looked_up_in_their_ranges_alone(savepoint: str, tmp_path: Path) -> None:
    selection = moorage.state.reader.select(locate(savepoint), "visits", "seen", ["user-7"])
    (handle,) = selection.handles
    for other in (tmp_path / "sp-1" / "state" / "visits").iterdir():
        if other.name != f"{handle.start}-{handle.end}":
            (other / "seen.parquet").unlink()
    assert read(savepoint, "visits", "seen", keys=["user-7"])["value"].to_pylist() == [7]
    assert read(savepoint, "visits", "seen", keys=[]).num_rows == 0


def test_a_key_that_is_not_there_gives_no_rows(savepoint: str) -> None:
    assert by_key(read(savepoint, "visits", "seen", keys=["nobody", "user-3"])) == {"user-3": 3}


@pytest.mark.parametrize(
    ("uid", "state", "keys", "problem"),
    [
        ("other", "seen", None, "no such operator.*there are: visits"),
        ("visits", "other", None, "no such state.*seen, pages, by_day, _timers"),
        ("visits", "seen", [7], "not of the operator's key types"),
        ("visits", "seen", [("a", "b")], "another number of columns"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(
    savepoint: str, uid: str, state: str, keys: Any, problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        read(savepoint, uid, state, keys=keys)


def test_a_path_without_state_says_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no checkpoint and no savepoint here"):
        read(tmp_path / "empty", "visits", "seen")
    with pytest.raises(UserError, match="does not exist"):
        read(tmp_path / "missing", "visits", "seen")


def test_a_checkpoint_that_is_not_retained_is_refused(lineage: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match="chk-9; retained are: chk-2, chk-1"):
        read(f"{lineage()}/chk-9", "visits", "visit")


def test_a_damaged_file_is_refused(savepoint: str, tmp_path: Path) -> None:
    path = next((tmp_path / "sp-1" / "state" / "visits").glob("*/seen.parquet"))
    data = bytearray(path.read_bytes())
    data[9] ^= 255
    path.write_bytes(data)
    with pytest.raises(CorruptState, match=r"seen\.parquet"):
        read(savepoint, "visits", "seen")


# -- writing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "problem"),
    [
        ([(SEEN, pa.table({"key": ["a", "a"], "value": [1, 2]}))], r"two values.*key=\('a',\)"),
        ([(SEEN, pa.table({"key": ["a", None], "value": [1, 2]}))], "has nulls.*column=key"),
        ([(SEEN, pa.table({"key": ["a"], "value": [None]}))], "has nulls.*column=value"),
        ([(SEEN, pa.table({"key": ["a"], "value": ["1"]}))], "not of its state's type.*string"),
        ([(SEEN, pa.table({"key": ["a"], "value": [1.5]}))], "not of its state's type"),
        ([(SEEN, pa.table({"key": [1], "value": [1]}))], "column=key found=int64"),
        ([(SEEN, pa.table({"key": ["a"], "n": [1]}))], r"missing=\['value'\] unknown=\['n'\]"),
        ([(SEEN, [{"key": "a"}])], "found=dict"),
        ([(SEEN, 7)], "found=int"),
        ([(SEEN, counts()), (SEEN, counts())], "given twice"),
        (
            [(PAGES, pa.table({"key": ["a"], "value": ["p"], "list_ordinal": [-1]}))],
            "list_ordinal is outside",
        ),
        (
            [
                (
                    BY_DAY,
                    pa.table(
                        {
                            "key": ["a", "a"],
                            "map_key": [datetime.date(2026, 1, 1)] * 2,
                            "value": [1.0, 2.0],
                        }
                    ),
                )
            ],
            "two values under one map key",
        ),
        (
            [
                (
                    ValueStateDescriptor("at", "timestamp"),
                    pa.table({"key": ["a"], "value": pa.array([0], pa.timestamp("us"))}),
                )
            ],
            "not of its state's type",
        ),
    ],
)
def test_a_table_that_cannot_be_state_is_refused_before_anything_is_stored(
    tmp_path: Path, states: Any, problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        write_savepoint(
            tmp_path / "sp", {"op": OperatorTables(states=states, key_types=["string"])}
        )
    assert not list((tmp_path / "sp").iterdir())


def test_duplicates_are_found_across_batches(tmp_path: Path) -> None:
    twice = [*counts(50).to_batches(), *counts(3).to_batches()]
    tables = OperatorTables(states=[(SEEN, twice)], key_types=["string"])
    with pytest.raises(UserError, match="two values"):
        write_savepoint(tmp_path / "sp", {"op": tables})
    timers = pa.table({"key": ["a", "b", "a"], "time": [1, 1, 1]})
    with pytest.raises(UserError, match="two timers of one time"):
        write_savepoint(
            tmp_path / "sp", {"op": OperatorTables(timers=timers, key_types=["string"])}
        )


def test_key_columns_have_the_names_of_the_table(tmp_path: Path) -> None:
    flights = pa.table({"to": ["BER", "BER"], "no": [1, 2], "value": [7, 8]})
    tables = OperatorTables(states=[(SEEN, flights)], key_types=["string", "int"], key=["to", "no"])
    with pytest.raises(UserError, match="not of one number"):
        write_savepoint(tmp_path / "a", {"op": replace_key(tables, ["to"])})
    path = write_savepoint(tmp_path / "b", {"op": tables})
    rows = read(path, "op", "seen", keys=[("BER", 2)]).to_pylist()
    assert [(row["key_1"], row["key_2"], row["value"]) for row in rows] == [("BER", 2, 8)]


def replace_key(tables: OperatorTables, key: list[str]) -> OperatorTables:
    return OperatorTables(states=tables.states, key_types=tables.key_types, key=key)


@pytest.mark.parametrize(
    ("uid", "arguments", "problem"),
    [
        ("op", {"parallelism": 0}, "parallelism must be"),
        ("op", {"parallelism": 3, "max_parallelism": 2}, "parallelism must be"),
        ("op", {"max_parallelism": 40_000}, "parallelism must be"),
        ("no/slash", {}, "a uid starts with"),
    ],
)
def test_numbers_and_names_that_a_job_cannot_have_are_refused(
    tmp_path: Path, uid: str, arguments: Any, problem: str
) -> None:
    tables = OperatorTables(states=[(SEEN, counts())], key_types=["string"])
    with pytest.raises(UserError, match=problem):
        write_savepoint(tmp_path / "sp", {uid: tables}, **arguments)


@pytest.mark.parametrize("path", ["/", "memory://", "s3://bucket/lineage/chk-3?region=x"])
def test_a_savepoint_has_a_name_that_cannot_be_mistaken(path: str) -> None:
    with pytest.raises(UserError, match="a name of its own"):
        write_savepoint(path, {})


@pytest.mark.parametrize("key_types", [[], ["double"], ["nonsense"]])
def test_key_types_that_keys_cannot_have_are_refused(tmp_path: Path, key_types: Any) -> None:
    tables = OperatorTables(states=[(SEEN, counts())], key_types=key_types)
    with pytest.raises(UserError, match=r"key type|key columns"):
        write_savepoint(tmp_path / "sp", {"op": tables})


def pages_of(table: pa.Table) -> dict[str, OperatorTables]:
    return {"visits": OperatorTables(states=[(PAGES, table)], key_types=["string"])}


def test_a_list_that_was_read_keeps_its_order_in_a_savepoint_without_its_base(
    lineage: Callable[..., Path], savepoint: str, tmp_path: Path
) -> None:
    base, target = lineage(), tmp_path / "sp"
    table = read(base, "visits", "pages")
    # What a job appends from epoch 1 on would come before, and at last in the place of, these.
    wrong: list[dict[str, Any]] = [{"max_parallelism": 32}, {"base": savepoint}]
    for arguments in wrong:
        with pytest.raises(UserError, match=r"list_epoch=7 epoch=0; .*leave both columns out"):
            write_savepoint(target, pages_of(table), **arguments)
    assert not list(target.iterdir())
    plain = table.drop_columns(["list_epoch", "list_ordinal"])
    write_savepoint(target, pages_of(plain), max_parallelism=32)
    access = FakeRange()
    (file,) = target.rglob("pages.parquet")
    for frame in frames_of([(file, "")], 0, 31):
        access.stage(encode_frame([], frame.keys, frame.values))
    access.commit()
    key = ("user-7",)
    prefix = key_prefix(key_groups(["string"], 32)([key])[0], KeyCodec(["string"]).encode(key))
    found: list[Any] = []
    for epoch in range(1, 9):
        store = KeyedStateStore(access, epoch)
        pages = store.list_state(PAGES)
        store.begin_chunk([prefix])
        store.switch_to(0)
        pages.add_all([f"new-{epoch}", f"more-{epoch}"])
        found = pages.get()
        store.finish()
        access.commit()
    appended = [f"{word}-{epoch}" for epoch in range(1, 9) for word in ("new", "more")]
    assert found == ["page-0", "page-1", "page-2", *appended]


def test_a_list_that_was_read_keeps_its_places_with_its_base(
    lineage: Callable[..., Path], tmp_path: Path
) -> None:
    base = lineage()
    table = read(base, "visits", "pages")
    path = write_savepoint(tmp_path / "sp", pages_of(table), base=base)
    assert read(path, "visits", "pages").equals(table)


def test_an_existing_savepoint_is_not_written_over(savepoint: str) -> None:
    with pytest.raises(UserError, match=r"not empty.*a savepoint.*choose another name"):
        write_savepoint(savepoint, {})


def test_a_repair_keeps_everything_that_is_not_named(
    lineage: Callable[..., Path], tmp_path: Path
) -> None:
    base = lineage()
    visits = read(base, "visits", "visit")
    fixed = visits.filter(pa.array([key != "user-9" for key in visits["key"].to_pylist()]))
    descriptor = ValueStateDescriptor("visit", list_states(base)[0].type)
    path = write_savepoint(
        tmp_path / "fixed", {"visits": OperatorTables(states=[(descriptor, fixed)])}, base=base
    )
    before, after = locate(base).manifest, locate(path).manifest
    assert read(path, "visits", "visit").equals(fixed)
    for state in ("pages", "by_day", "_timers"):
        assert repr(rows(path, state)) == repr(rows(base, state))
    assert (after.source, after.watermarks, after.epoch) == ({"files": "offsets"}, {"in": 5}, 7)
    assert (after.kind, after.name, after.lineage) == ("savepoint", "fixed", before.lineage)
    assert [h.format for h in after.handles] == ["canonical", "canonical"]
    SavepointStore(path).verify(full=True)


EVOLVED = CanonicalSpec(
    uid="visits",
    start=0,
    end=15,
    epoch=7,
    max_parallelism=16,
    key_types=("string",),
    states=(
        StateMeta(
            name="visit",
            kind="value",
            type="struct<price:decimal(12,3),n:bigint,by:string DEFAULT 'web'>",
            earlier=["struct<n:bigint,at:timestamp,price:decimal(9,2)>"],
        ),
        StateMeta(name="pages", kind="list", type="string"),
        StateMeta(name="by_day", kind="map", type="array<double>", key_type="date"),
    ),
)


@pytest.mark.parametrize("spec", [EVOLVED])
def test_values_of_an_earlier_type_are_read_and_rewritten_as_the_last(
    lineage: Callable[..., Path], tmp_path: Path, spec: CanonicalSpec
) -> None:
    base = lineage()
    before = by_key(read(base, "visits", "visit"))
    assert before["user-7"] == {"price": Decimal("-7.500"), "n": 4, "by": "web"}
    fixed = write_savepoint(
        tmp_path / "fixed", {"visits": OperatorTables(drop=["pages"])}, base=base
    )
    assert by_key(read(fixed, "visits", "visit")) == before
    visit = locate(fixed).manifest.operators["visits"].states[0]
    assert (visit.type, visit.earlier) == (spec.states[0].type, [])
    again = write_savepoint(
        tmp_path / "again", {"visits": OperatorTables(drop=["by_day"])}, base=fixed
    )
    assert by_key(read(again, "visits", "visit")) == before
    copied = write_savepoint(
        tmp_path / "copied",
        {"new": OperatorTables(states=[(SEEN, counts())], key_types=["string"])},
        base=base,
    )
    assert by_key(read(copied, "visits", "visit")) == before
    assert locate(copied).manifest.operators["visits"].states[0].earlier


def rows(path: str | Path, state: str) -> list[Any]:
    table = read(path, "visits", state)
    return table.to_pylist()


def test_operators_of_the_base_are_copied_with_their_files_added_and_dropped(
    lineage: Callable[..., Path], tmp_path: Path
) -> None:
    base = lineage(UploadLimits(inline_range=0, inline_file=0))
    new = OperatorTables(states=[(SEEN, counts())], key_types=["string"])
    both = write_savepoint(tmp_path / "both", {"new": new}, base=f"{base}/chk-2", parallelism=4)
    assert [h.format for h in locate(both).manifest.operators["visits"].subtasks] == ["native"] * 2
    (tmp_path / "lineage").rename(tmp_path / "gone")
    assert read(both, "visits", "visit").num_rows == 60
    assert len(locate(both).manifest.operators["new"].subtasks) == 4
    only = write_savepoint(tmp_path / "only", {"visits": None}, base=both)
    assert {info.uid for info in list_states(only)} == {"new"}
    assert read(only, "new", "seen").num_rows == 100


def test_states_and_timers_are_dropped_when_asked(savepoint: str, tmp_path: Path) -> None:
    less = OperatorTables(drop=["pages", "_timers"])
    path = write_savepoint(tmp_path / "less", {"visits": less}, base=savepoint)
    assert [info.state for info in list_states(path)] == ["seen", "by_day", "_timers"]
    assert read(path, "visits", "_timers").num_rows == 0
    assert read(path, "visits", "seen").num_rows == 100


@pytest.mark.parametrize(
    ("operators", "arguments", "problem"),
    [
        ({"other": None}, {}, "cannot drop an operator.*visits"),
        ({"visits": OperatorTables(drop=["other"])}, {}, r"not in the base=\['other'\]"),
        (
            {"visits": OperatorTables(states=[(SEEN, counts())], drop=["seen"])},
            {},
            r"also given=\['seen'\]",
        ),
        ({"visits": OperatorTables(key_types=["int"])}, {}, "key of an operator cannot change"),
        ({}, {"max_parallelism": 64}, "fixed by the base"),
    ],
)
def test_a_repair_that_does_not_fit_its_base_is_refused(
    savepoint: str, tmp_path: Path, operators: Any, arguments: Any, problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        write_savepoint(tmp_path / "sp", operators, base=savepoint, **arguments)


def test_a_bootstrapped_savepoint_restores_as_the_job_would_have_written_it(
    savepoint: str, tmp_path: Path, small: RocksOptions
) -> None:
    manifest = locate(savepoint).manifest
    operator = manifest.operators["visits"]
    with RangeHost(tmp_path / "local", EmbeddedRocksDBStateBackend(tuned=small)) as host:
        base = RestoreBase(1, manifest.epoch, operator.subtasks)
        spec = RangeSpec("visits", 0, 127)
        result = host.open_range(spec, "f1r0", base, [], savepoint)
        due = host.range(spec.lease("f1r0")).due_timers(result.version, 10, 100)
    assert len(due) == 2


def test_all_public_names_are_exported() -> None:
    assert all(getattr(moorage.state, name) for name in moorage.state.__all__ if name != "register")
    with pytest.raises(AttributeError):
        moorage.state.nothing  # noqa: B018 - reading it is the test


def test_a_savepoint_on_s3_is_written_read_and_repaired(s3_store: ObjectStore) -> None:
    def below(name: str) -> str:
        place, mark, options = s3_store.url.partition("?")
        return f"{place}/{name}{mark}{options}"

    tables = OperatorTables(states=[(SEEN, counts())], key_types=["string"])
    first = write_savepoint(below("sp-1"), {"op": tables}, parallelism=2)
    second = write_savepoint(below("sp-2"), {"more": tables}, base=first)
    assert locate(second).manifest.name == "sp-2"
    assert by_key(read(below("sp-2"), "op", "seen", keys=["user-7"])) == {"user-7": 7}
    SavepointStore(second).verify(full=True)
    with pytest.raises(UserError, match="not empty"):
        write_savepoint(below("sp-1"), {"op": tables})


@pytest.mark.parametrize("step", range(1, 9))
def test_a_savepoint_whose_writing_ends_at_any_step_does_not_exist(
    tmp_path: Path, savepoint: str, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """One put for the claim, four files of `new`, two of the copied operator, the manifest."""
    puts: list[str] = []

    def failing(name: str) -> None:
        put = getattr(LocalStore, name)

        def put_or_fail(self: LocalStore, key: str, *rest: Any, **options: Any) -> Any:
            puts.append(key)
            if len(puts) == step:
                raise StoreUnavailable(f"injected: key={key}")
            return put(self, key, *rest, **options)

        monkeypatch.setattr(LocalStore, name, put_or_fail)

    tables = OperatorTables(states=[(SEEN, counts())], key_types=["string"])
    base = write_savepoint(tmp_path / "base", {"old": tables}, base=savepoint, parallelism=2)
    base = write_savepoint(tmp_path / "less", {"visits": None}, base=base)
    failing("put_if_absent")
    failing("put_file")
    with pytest.raises(StoreUnavailable):
        write_savepoint(tmp_path / "sp", {"new": tables}, base=base, parallelism=4)
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    assert (puts[0], len(puts)) == ("ATTEMPT", step)
    assert puts[-1] != "MANIFEST" or step == 8
    with pytest.raises(UserError, match=r"never completed|no savepoint"):
        SavepointStore(f"file://{tmp_path}/sp").load()
    assert read(base, "old", "seen").num_rows == 100
