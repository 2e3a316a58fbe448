"""One rule for what a reader does not know: refused by name, unless its name says optional."""

import json
import subprocess
import sys

import msgspec
import pyarrow as pa
import pytest

from moorage.engine.sparklog import InputLog, SparkLog
from moorage.sinks import records
from moorage_state.canonical.file_schema import read_meta, with_meta
from moorage_state.canonicalspec import FileMeta
from moorage_state.deltas import DeltaHeader, DeltaReader, DeltaWriter, encode_frame
from moorage_state.errors import CorruptState, NewerFormat
from moorage_state.formats import decode_document


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Leaf(Closed):
    n: int = 0


class Left(Closed, tag="left"):
    n: int = 0


class Right(Closed, tag="right"):
    m: int = 0


class Tree(Closed):
    leaf: Leaf
    leaves: list[Leaf] = []
    named: dict[str, Leaf] = {}
    maybe: Leaf | None = None
    either: Left | Right | None = None
    pairs: tuple[Leaf, ...] = ()
    opaque: dict[str, object] = {}


X: dict[str, object] = {"?x": [{"?y": 1}]}


def test_optional_fields_are_passed_over_wherever_they_stand() -> None:
    document = {
        "leaf": X,
        "leaves": [X, {"n": 2, **X}],
        "named": {"?a": {"n": 3, **X}},
        "maybe": X,
        "either": {"type": "right", "m": 4, **X},
        "pairs": [X],
        "opaque": {"a": X},
        **X,
    }
    assert decode_document(json.dumps(document).encode(), Tree, "tree", "here") == Tree(
        Leaf(), [Leaf(), Leaf(2)], {"?a": Leaf(3)}, Leaf(), Right(4), (Leaf(),), {"a": X}
    )


@pytest.mark.parametrize(
    "document",
    [
        {"leaf": {}, "vital": 1},
        {"leaf": {"vital": 1, **X}},
        {"leaf": {}, "leaves": [{}, {"vital": 1}], **X},
        {"leaf": {}, "either": {"type": "left", "vital": 1}},
        {"leaf": {}, "named": {"a": {"vital": 1}}},
    ],
)
def test_every_other_field_is_refused_with_its_name_and_the_place(document) -> None:
    with pytest.raises(NewerFormat, match=r"^tree was written by a newer.*path=here.*`vital`"):
        decode_document(json.dumps(document).encode(), Tree, "tree", "here")


def test_what_is_no_document_is_not_taken_for_a_newer_one() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_document(b'{"leaf":', Tree, "tree", "here")


def delta_with(path, kind: bytes) -> None:
    writer = DeltaWriter(path, DeltaHeader("flights", 0, 63, "f3r0", 7, "0" * 32))
    for n in (b"1", b"2"):
        writer.append(encode_frame([], [b"\0\1" + n], [n]), 1)
        writer._block(kind, b"of the next release")
    writer.finish(sync=False)


def test_an_optional_block_of_a_delta_is_passed_over(tmp_path) -> None:
    delta_with(tmp_path / "some.delta", b"s")
    with DeltaReader(tmp_path / "some.delta") as reader:
        assert [frame.values for frame in reader.frames()] == [[b"1"], [b"2"]]


@pytest.mark.parametrize("kind", [b"R", b"\x01"])
def test_any_other_block_of_a_delta_is_refused_and_told(tmp_path, kind) -> None:
    delta_with(tmp_path / "some.delta", kind)
    told = pytest.raises(NewerFormat, match=r"some\.delta block=b")
    with DeltaReader(tmp_path / "some.delta") as reader, told:
        list(reader.frames())


def record(**more: object) -> list[tuple[str, bytes]]:
    fields = {"format": 1, "checkpoint": 7, "files": ["a"], **more}
    return [(records.record_name(7), json.dumps(fields).encode())]


def test_records_of_published_output_keep_the_rule() -> None:
    assert records.decode(record(**X), "here") == {7: ["a"]}
    for more in ({"format": 2}, {"deleted": ["b"]}):
        with pytest.raises(NewerFormat, match=r"record of published output.*(format=2|deleted)"):
            records.decode(record(**more), "here")
    with pytest.raises(CorruptState):
        records.decode(record(files=None), "here")


def test_source_progress_keeps_the_rule() -> None:
    log = SparkLog("q", "m", 3, "h", None, {"in": InputLog(None, None, {})})
    plain = log.to_json()
    plain["inputs"]["in"] |= X
    assert SparkLog.from_json(plain | X) == log
    with pytest.raises(NewerFormat, match="field=shards"):
        SparkLog.from_json(plain | {"shards": 2})
    plain["inputs"]["in"]["lag"] = 1
    with pytest.raises(NewerFormat, match="field=lag"):
        SparkLog.from_json(plain)


def test_canonical_files_keep_the_rule() -> None:
    meta = FileMeta(
        uid="u", state="s", kind="value", type="bigint", key_types=("string",),
        max_parallelism=128, start=0, end=127, epoch=1,
    )  # fmt: skip
    schema = with_meta(meta)

    def with_field(name: str) -> pa.Schema:
        document = json.loads(schema.metadata[b"moorage"]) | {name: 1}
        return schema.with_metadata({"moorage": json.dumps(document)})

    assert read_meta(with_field("?hint"), "here") == read_meta(schema, "here")
    with pytest.raises(NewerFormat, match=r"canonical file.*path=here.*`vital`"):
        read_meta(with_field("vital"), "here")


FIRST_DOCUMENTS = """
import sys, threading
import msgspec
from moorage_state.formats import decode_document

sys.setswitchinterval(1e-4)
for _ in range(20):
    kind = msgspec.defstruct("Leaf", [("n", int, 0)])
    for depth in range(30):
        kind = msgspec.defstruct(f"Node{depth}", [(f"a{n}", kind | None, None) for n in range(4)])
    start = threading.Barrier(4)

    def read():
        start.wait()
        decode_document(b'{"a3":' * 20 + b"{}" + b"}" * 20, kind, "tree", "here")

    threads = [threading.Thread(target=read) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
"""


def test_threads_that_read_the_first_documents_of_a_kind_at_once_do_not_crash_the_process():
    """What msgspec finds out of a type when it first meets it is not safe in threads."""
    done = subprocess.run([sys.executable, "-c", FIRST_DOCUMENTS], check=False)
    assert done.returncode == 0
