"""Everything that reads bytes from a store, a disk or a socket: what it reads, how it refuses."""

import hashlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from moorage import queryable
from moorage.cli.cluster_status import status_in
from moorage.cli.kubectl import Refused as Unreadable
from moorage.cluster import endpoint as driver_endpoint
from moorage.driver import control
from moorage.driver.lookup_requests import BadLookup
from moorage.driver.lookup_requests import from_json as lookup_in
from moorage.driver.run_status import run_status
from moorage.driver.types import JobProgress
from moorage.engine.acks import Ack, decode_ack, encode_ack
from moorage.http_server import Refused
from moorage.kafka.transactions import Ledger
from moorage.sinks import metadata_log, records
from moorage_api import ManifestError
from moorage_api.driver import DriverState
from moorage_api.manifest import parse_manifest
from moorage_operator import endpoint as operator_endpoint
from moorage_operator.objects import read_job_spec, read_job_status, read_revision, read_snapshot
from moorage_operator.podviews import driver_end
from moorage_operator.ports import EndpointRefused, EndpointUnreachable
from moorage_operator.shards import SELECTION_ANNOTATION, read_selection
from moorage_operator.watch_cache import page_of
from moorage_state.canonical.file_schema import read_meta
from moorage_state.canonical.reading import CanonicalFile
from moorage_state.deltas import DeltaReader
from moorage_state.errors import Bug, CorruptState, NewerFormat, UserError
from moorage_state.formats import UNREADABLE, sealed
from moorage_state.memory.files import HeapFile
from moorage_state.server import wire
from moorage_state.snapshots import run_lock
from moorage_state.snapshots.entries import decode_record
from moorage_state.snapshots.manifest import decode_snapshot
from moorage_state.snapshots.parts import decode_part
from moorage_state.snapshots.store_tasks.messages import decode_answer, decode_request
from moorage_state.state_backends import heap_stream
from moorage_state.state_backends.streams import StreamStateHandle

from .damage import as_json, as_msgpack

__all__ = ["BY_BYTES", "BY_DOCUMENT", "Documents", "Parser"]

UNIT = Path(__file__).parent.parent
SNAPSHOTS = UNIT / "snapshots" / "golden"
STORED = (CorruptState, NewerFormat)


@dataclass(frozen=True)
class Parser:
    """One of them.

    Attributes:
        seeds: what is well-formed, to be damaged.
        read: what is under test, given the bytes and a folder of its own.
        refuses: what it may raise, and nothing else.
        proven: by a checksum over all of it: of other bytes than the seeds', nothing is taken.
    """

    name: str
    seeds: tuple[bytes, ...]
    read: Callable[[bytes, Path], object]
    refuses: tuple[type[Exception], ...]
    proven: bool = False


@dataclass(frozen=True)
class Documents:
    """The document that a parser finds behind its checksum, and how it is made into bytes."""

    parser: Parser
    documents: tuple[Any, ...]
    written: Callable[[Any], bytes]


def lines(*names: str) -> tuple[bytes, ...]:
    texts = (SNAPSHOTS.joinpath(name).read_bytes() for name in names)
    found = tuple(line for text in texts for line in text.splitlines(keepends=True))
    # A kind that development versions had: it is refused.
    return tuple(line for line in found if b'"kind":"epoch"' not in line)


def with_file(read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """What reads a file."""

    def from_bytes(data: bytes, folder: Path) -> object:
        path = folder / "file"
        path.write_bytes(data)
        return read(path)

    return from_bytes


def plain(read: Callable[[bytes], object]) -> Callable[[bytes, Path], object]:
    """What reads bytes."""
    return lambda data, _: read(data)


def text_of(data: bytes) -> str:
    """As text that somebody else made comes: of any characters."""
    return data.decode(errors="replace")


def over_socket(read: Callable[[wire.Connection], object]) -> Callable[[bytes, Path], object]:
    """What reads from a peer that sends this and hangs up."""

    def from_bytes(data: bytes, _: Path) -> object:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            sender = threading.Thread(target=_send, args=(theirs, data))
            sender.start()
            try:
                connection = wire.Connection(ours)
                connection.limit(20)
                return read(connection)
            finally:
                ours.close()
                sender.join()

    return from_bytes


def _send(peer: socket.socket, data: bytes) -> None:
    try:
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
    except OSError:
        return


# -- the store

LOG = Parser(
    "log entry",
    lines(
        "log-entries-v1.jsonl",
        "log-compacted-v1.jsonl",
        "log-finished-v1.jsonl",
        "log-forgotten-v1.jsonl",
        "log-rescaled-v1.jsonl",
    ),
    plain(lambda data: decode_record(data, "log/1.json")),
    STORED,
    proven=True,
)


def log_line(document: Any) -> bytes:
    head = as_json(document)
    head = head[: head.rindex(b',"sha256":')] if b',"sha256":' in head else head[:-1]
    digest = hashlib.sha256(head).hexdigest().encode()
    return b'%b,"sha256":"%b"}\n' % (head, digest)


MANIFEST = Parser(
    "manifest",
    tuple(
        (SNAPSHOTS / name).read_bytes()
        for name in ("MANIFEST-v1", "MANIFEST-v2", "MANIFEST-v2-source-texts")
    ),
    plain(lambda data: decode_snapshot(data, "MANIFEST")),
    (*STORED, UserError),
    proven=True,
)


def body(data: bytes) -> bytes:
    return data.partition(b"\n")[2]


def manifest_document(document: Any) -> bytes:
    number = document.get("format", 2) if isinstance(document, dict) else 2
    known = number if isinstance(number, int) and 0 <= number < 10**9 else 2
    return sealed("MOORAGE-MANIFEST", known, as_json(document))


PART = Parser(
    "part of a manifest",
    tuple((SNAPSHOTS / name).read_bytes() for name in ("part-v1", "part-v2")),
    plain(lambda data: decode_part(data, "part")),
    (*STORED, UserError),
    proven=True,
)


def part_document(document: Any) -> bytes:
    number = document[0] if isinstance(document, list) and document else 1
    known = number if isinstance(number, int) and 0 <= number < 10**9 else 1
    return sealed("MOORAGE-PART", known, as_msgpack(document))


SINK_RECORD = Parser(
    "record of published output",
    (records.encode(7, ["a.parquet", {"file": "b"}]).encode(),),
    plain(lambda data: records.decode([(records.record_name(7), data)], "out")),
    STORED,
)
SINK_LINE = Parser(
    "list of visible files",
    (b'{"path":"file:///out/part-0.parquet","size":1,"isDir":false}',),
    plain(lambda data: metadata_log._path(text_of(data), "out")),
    STORED,
)
LEDGER = Parser(
    "ledger of a kafka sink",
    (Ledger(3, 17).to_text().encode(),),
    plain(lambda data: Ledger.from_text(text_of(data), "group")),
    (NewerFormat, UserError),
)

VISIT = (UNIT / "canonical" / "golden" / "visit.parquet").read_bytes()
_SCHEMA = pq.read_schema(UNIT / "canonical" / "golden" / "visit.parquet")
((_META_KEY, _META),) = ((k, v) for k, v in _SCHEMA.metadata.items() if k != b"ARROW:schema")


def schema_with(data: bytes) -> pa.Schema:
    return _SCHEMA.with_metadata({_META_KEY: data})


CANONICAL = Parser(
    "metadata of a canonical file",
    (_META,),
    plain(lambda data: read_meta(schema_with(data), "visit.parquet")),
    (*STORED, UserError),
)


def parquet(path: Path) -> object:
    with CanonicalFile(path) as file:
        return [batch.num_rows for batch in file.batches(0, 32_767)]


PARQUET = Parser("canonical file", (VISIT,), with_file(parquet), (*STORED, UserError))
HOLDER = Parser(
    "lock of a run",
    (run_lock._encode(run_lock.LockHolder(1, "host", "n/clicks", "2026-01-02"), "token", 3),),
    plain(lambda data: (run_lock._token(data), run_lock._holder_of(data))),
    (),
)

# -- the local volume

BACKENDS = UNIT / "backends" / "golden"
(HEAP,) = (UNIT / "memory" / "golden").iterdir()


def delta(path: Path) -> object:
    with DeltaReader(path) as reader:
        return [tuple(frame) for frame in reader.frames()]


def heap(path: Path) -> object:
    with HeapFile(path) as file:
        return list(file.groups(lambda _: True))


DELTA = Parser(
    "delta file", ((BACKENDS / "delta-v1").read_bytes(),), with_file(delta), STORED, proven=True
)
HEAP_FILE = Parser("state in memory", (HEAP.read_bytes(),), with_file(heap), STORED)


def summed(document: Any) -> bytes:
    """A delta with another frame, of which every checksum is right."""
    made = b"MOORDLT\0\0\1"
    digest = xxhash.xxh3_128()
    header = msgspec.msgpack.encode(("up", 0, 9, "f1r0", 7, ""))
    frame = as_msgpack(document)
    digest.update(header)
    digest.update(len(frame).to_bytes(8, "big") + frame)
    end = msgspec.msgpack.encode((1, 3, digest.hexdigest()))
    for kind, payload in ((b"H", header), (b"F", frame), (b"E", end)):
        check = xxhash.xxh3_64(kind + payload).intdigest().to_bytes(8, "big")
        made += kind + len(payload).to_bytes(4, "big") + payload + check
    return made


def heap_of_stream(data: bytes) -> object:
    stream = StreamStateHandle(size=len(data), sha256="", data=data)
    offsets = (246,) * 5 + (388,) * 8 + (523,) * 4
    reader = heap_stream.HeapReader(stream, offsets, 0)
    return list(reader.groups(0, 15))


HEAP_STREAM = Parser(
    "stream of state in memory",
    ((BACKENDS / "hashmap-stream-v1").read_bytes(),),
    plain(heap_of_stream),
    STORED,
)

# -- sockets


def requests(connection: wire.Connection) -> object:
    operation, arguments, payload = connection.receive_request()
    return operation.arguments_of(arguments, payload)


def message(header: Any, payload: bytes = b"") -> bytes:
    return wire.encode_message(msgspec.msgpack.encode(header), payload)


GONE = (EOFError, OSError)
REQUEST = Parser(
    "request to a state server",
    (
        message(("ping", ())),
        message(("get_many", (("up", 0, "f1r0"), (7, "d"))), msgspec.msgpack.encode([b"k"])),
        message(("together", (True,)), msgspec.msgpack.encode([("ping", ()), ("stats", ())])),
    ),
    over_socket(requests),
    (*GONE, Bug),
)
HELLO = Parser(
    "hello to a state server",
    (message((wire.PROTOCOL_VERSION, b"p" * 32, b"n" * 32)),),
    over_socket(lambda peer: wire.accept_peer(peer, "token", b"n" * 32, "server")),
    (*GONE, Bug, UserError),
)
GREETING = Parser(
    "greeting of a state server",
    (b"MOORSTA" + bytes([wire.PROTOCOL_VERSION]) + b"n" * 32 + b"\6server" + message(None, b"p"),),
    over_socket(lambda peer: wire.greet_server(peer, "token", "server")),
    (*GONE, Bug, UserError, wire.AnotherServer),
)


def reply(connection: wire.Connection) -> object:
    error, payload = connection.receive_reply()
    return error, bytes(payload)


REPLY = Parser(
    "reply of a state server",
    (
        message(None, msgspec.msgpack.encode([b"v"])),
        message(True) + message({"code": "stale_lease", "args": ["a"]}),
    ),
    over_socket(reply),
    (*GONE, Bug),
)

# By Spark, from the workers that run a job's functions.
ACK = Parser(
    "acknowledgement of a subtask",
    (encode_ack(Ack(uid="up", subtask=1, run="f1r0", epoch=7, queryable={"a": "n"})),),
    plain(decode_ack),
    UNREADABLE,
)


def told(data: bytes) -> object:
    return str(queryable._refusal(503, data)), str(queryable._refusal(404, data))


REFUSAL = Parser(
    "refusal of a look-up",
    (b'{"error":{"code":"unknown_state","message":"no such state"}}',),
    plain(told),
    (),
)


ORDERS = ("_checkpoint", "_savepoint", "_stop", "_rescale")


def order(data: bytes) -> object:
    said = []
    for name in ORDERS:
        try:
            said.append(getattr(driver_endpoint, name)(data))
        except Refused as refused:
            said.append(refused)
    if all(isinstance(one, Refused) and one.status == HTTPStatus.BAD_REQUEST for one in said):
        raise said[0]
    return said


ORDER = Parser(
    "order to a driver",
    (
        b'{"requestId":"r-1"}',
        b'{"requestId":"r-1","name":"sp","format":"canonical"}',
        b'{"requestId":"r-1","mode":"Savepoint","name":"sp","format":"native"}',
        b'{"requestId":"r-1","parallelism":4,"executors":2}',
    ),
    plain(order),
    (Refused,),
)
CONTROL = Parser(
    "line on a run's control socket",
    tuple(
        json.dumps({"format": control.FORMAT, **asked}).encode()
        for asked in (
            {"status": True},
            {"rescale": {"parallelism": 4}},
            {"savepoint": {"name": "sp", "format": "canonical", "stop": False}},
            {"lookup": {"name": "clicks", "body": '{"keys":["a"]}'}},
        )
    ),
    plain(control._request_in),
    (UserError,),
)
LOOKUP = Parser(
    "look-up of queryable state",
    (b'{"keys":["a",1,null],"limit":7}', b'{"keys":[{"a":1}],"mapKeyPrefix":"x","after":"b"}'),
    plain(lambda data: lookup_in("clicks", data)),
    (BadLookup,),
)
RUNNING = DriverState(attempt=1, job_uid="u-1", phase="running")
ANSWER = Parser(
    "answer of a driver to the operator",
    (RUNNING.model_dump_json(by_alias=True).encode(),),
    plain(
        lambda data: operator_endpoint._read(
            DriverState, operator_endpoint._answer(200, data, "/v1/status")
        )
    ),
    (EndpointUnreachable, EndpointRefused),
)
RUN_STATUS = Parser(
    "answer of a driver to a person",
    (msgspec.json.encode(run_status("clicks", "s3://b/c", JobProgress(), datetime.now(UTC))),),
    plain(status_in),
    (Unreadable,),
)
ENDED = Parser(
    "last words of a driver",
    (b'{"format":1,"attempt":3,"outcome":"Failed","code":"fenced","message":"m","epoch":7}',),
    plain(lambda data: driver_end(text_of(data))),
    (),
)
TASK = Parser(
    "request of a store task",
    (b'{"format":1,"id":"t-1","kind":"Copy","path":"s3://a/b","source":"s3://c"}',),
    plain(lambda data: decode_request(text_of(data))),
    (UserError,),
)
TASK_ANSWER = Parser(
    "answer of a store task",
    (b'{"format":1,"id":"t-1","state":"Completed","result":{"a":[1,2]}}',),
    plain(lambda data: decode_answer(text_of(data))),
    (),
)

# -- the API server, where others may write

META = {"name": "clicks", "namespace": "streams", "uid": "u-1", "resourceVersion": "1"}


def of_object(
    read: Callable[[dict[str, Any]], object], field: str, kind: str = "StatefulSparkJob"
) -> Callable[[bytes], object]:
    """What reads one field of an object, which is a mapping there or not there at all."""

    def from_bytes(data: bytes) -> object:
        try:
            value = msgspec.json.decode(data)
        except UNREADABLE:
            return None  # no API server has this
        given = value if isinstance(value, dict) else {}
        return read({"kind": kind, "metadata": META, field: given})

    return from_bytes


DEFAULTS = (UNIT / "api" / "golden" / "defaults-v1.json").read_bytes()
STATUS = json.dumps(
    {
        "format": 1,
        "phase": "Running",
        "attempt": {"number": 3, "restoredFrom": {"path": "s3://a/b"}},
        "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}
        ],
        "snapshots": {"lastCheckpoint": {"id": 7, "completedAt": "2026-01-02T03:04:05Z"}},
    }
).encode()
SPEC = Parser("spec of a job", (DEFAULTS,), plain(of_object(read_job_spec, "spec")), ())
JOB_STATUS = Parser("status of a job", (STATUS,), plain(of_object(read_job_status, "status")), ())
SNAPSHOT = Parser(
    "spec of a snapshot",
    (b'{"jobRef":{"name":"clicks"},"type":"Savepoint","pinned":true}',),
    plain(of_object(read_snapshot, "spec", "StatefulSparkSnapshot")),
    (),
)
REVISION = Parser(
    "revision of a job",
    (b'{"spec":%b}' % DEFAULTS,),
    plain(of_object(read_revision, "data", "ControllerRevision")),
    (),
)

PAGE = Parser(
    "page of a list of the API server",
    (
        json.dumps(
            {"metadata": {"continue": "x"}, "items": [{"metadata": META, "status": {"phase": "P"}}]}
        ).encode(),
    ),
    plain(lambda data: page_of("Pod", data)),
    (ValueError, RecursionError),  # the process has room for what is as deep as a server takes it
)


def selection(data: bytes) -> object:
    return read_selection({"metadata": {"annotations": {SELECTION_ANNOTATION: text_of(data)}}})


SELECTION = Parser(
    "what an operator selects",
    (b'{"format":1,"namespaces":["a"],"shard":"x","shards":["x","y"]}',),
    plain(selection),
    (),
)
JOB_YAML = Parser(
    "manifest of a job",
    ((UNIT.parents[1] / "examples" / "kubernetes" / "ticker.yaml").read_bytes(),),
    plain(lambda data: parse_manifest(data, "job.yaml")),
    (ManifestError,),
)


def documents(parser: Parser) -> Documents:
    """Those that are JSON as they stand."""
    return Documents(parser, tuple(json.loads(seed) for seed in parser.seeds), as_json)


BY_BYTES = (
    LOG, MANIFEST, PART, SINK_RECORD, SINK_LINE, LEDGER, CANONICAL, PARQUET, HOLDER, DELTA,
    HEAP_FILE, HEAP_STREAM, REQUEST, REPLY, HELLO, GREETING, ACK, ORDER, CONTROL, LOOKUP, REFUSAL,
    ANSWER, RUN_STATUS, ENDED, TASK, TASK_ANSWER, PAGE, SELECTION, JOB_YAML,
)  # fmt: skip

BY_DOCUMENT = (
    Documents(LOG, tuple(json.loads(seed) for seed in LOG.seeds), log_line),
    Documents(
        MANIFEST, tuple(json.loads(body(seed)) for seed in MANIFEST.seeds), manifest_document
    ),
    Documents(PART, tuple(msgspec.msgpack.decode(body(s)) for s in PART.seeds), part_document),
    Documents(DELTA, ([[[b"a", b"b"]], [b"k", b"l"], [b"v", None]],), summed),
    *map(documents, (SINK_RECORD, SINK_LINE, LEDGER, CANONICAL, ORDER, CONTROL, LOOKUP, ANSWER)),
    *map(documents, (HOLDER, REFUSAL, PAGE)),
    *map(documents, (ENDED, TASK, TASK_ANSWER, SPEC, JOB_STATUS, SNAPSHOT, REVISION, SELECTION)),
)

TAKING = tuple(parser for parser in BY_BYTES if parser not in (HELLO, GREETING))
"""Whose seeds are taken as they stand; a handshake needs another proof for each nonce."""
