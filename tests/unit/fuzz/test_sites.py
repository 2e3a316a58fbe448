"""Every place that makes values of bytes is known: as a parser that is fuzzed, or why it is none.

A place that is new fails here until it is listed, which is the moment to give it damaged bytes.
"""

import ast
from pathlib import Path

import pytest

from .parsers import BY_BYTES, BY_DOCUMENT

ROOT = Path(__file__).parents[3]
ROOTS = ("backends", "operator", "runtime")
NAMES = frozenset({"decode_document", "read_json", "parse_manifest", "literal_eval", "eval"})
ENDS = frozenset({
    "Decoder", "Unpickler", "iter_unpack", "literal_eval", "loads", "model_validate_json",
    "open_file", "open_stream", "read_table", "unpack", "unpack_from",
    "ParquetFile", "compose_all", "safe_load", "safe_load_all", "fromstring", "parse_qsl",
})  # fmt: skip
DECODES = frozenset({"msgspec.json.decode", "msgspec.msgpack.decode"})


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def sites(path: Path) -> int:
    """How many places in a file read bytes, or text that was bytes."""
    count = 0
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            count += node.attr in ENDS or dotted(node) in DECODES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            count += node.func.id in NAMES
    return count


def _runs(path: Path) -> bool:
    """Whether its program meets bytes of others; what builds images and tests jobs does not."""
    return "image" not in path.parts and "testing" not in path.parts


def found() -> dict[str, int]:
    paths = sorted(path for root in ROOTS for path in (ROOT / root).rglob("*.py"))
    counts = {str(path.relative_to(ROOT)): sites(path) for path in paths if _runs(path)}
    return {name: count for name, count in counts.items() if count}


DOCUMENTS = {one.parser.name for one in BY_DOCUMENT}
BACKENDS, CONTROL, RUNTIME = (
    "backends/moorage_state",
    "operator/moorage_operator",
    "runtime/moorage",
)
FUZZED: dict[str, tuple[int, tuple[str, ...]]] = {
    f"{BACKENDS}/canonical/file_schema.py": (2, ("metadata of a canonical file",)),
    f"{BACKENDS}/canonical/reading.py": (1, ("canonical file",)),
    f"{BACKENDS}/deltas.py": (5, ("delta file",)),
    f"{BACKENDS}/memory/files.py": (6, ("state in memory",)),
    f"{BACKENDS}/server/wire.py": (
        13,
        (
            "request to a state server",
            "reply of a state server",
            "hello to a state server",
            "greeting of a state server",
        ),
    ),
    f"{BACKENDS}/snapshots/entries.py": (5, ("log entry",)),
    f"{BACKENDS}/snapshots/manifest.py": (3, ("manifest",)),
    f"{BACKENDS}/snapshots/parts.py": (4, ("part of a manifest",)),
    f"{BACKENDS}/snapshots/run_lock.py": (3, ("lock of a run",)),
    f"{BACKENDS}/snapshots/store_tasks/messages.py": (
        3,
        ("request of a store task", "answer of a store task"),
    ),
    f"{BACKENDS}/state_backends/heap_stream.py": (4, ("stream of state in memory",)),
    "operator/moorage_api/manifest.py": (2, ("manifest of a job",)),
    f"{CONTROL}/endpoint.py": (1, ("answer of a driver to the operator",)),
    f"{CONTROL}/objects.py": (1, ("spec of a job", "status of a job", "spec of a snapshot")),
    f"{CONTROL}/podviews.py": (1, ("last words of a driver",)),
    f"{CONTROL}/shards.py": (1, ("what an operator selects",)),
    f"{CONTROL}/watch_cache.py": (4, ("page of a list of the API server",)),
    f"{RUNTIME}/cli/cluster_status.py": (1, ("answer of a driver to a person",)),
    f"{RUNTIME}/cluster/endpoint.py": (1, ("order to a driver",)),
    # One of them is an answer that it has just made itself.
    f"{RUNTIME}/driver/control.py": (3, ("line on a run's control socket",)),
    f"{RUNTIME}/driver/lookup_requests.py": (1, ("look-up of queryable state",)),
    f"{RUNTIME}/engine/acks.py": (1, ("acknowledgement of a subtask",)),
    f"{RUNTIME}/kafka/transactions.py": (1, ("ledger of a kafka sink",)),
    f"{RUNTIME}/queryable.py": (2, ("refusal of a look-up",)),
    f"{RUNTIME}/sinks/metadata_log.py": (1, ("list of visible files",)),
    f"{RUNTIME}/sinks/records.py": (1, ("record of published output",)),
}
"""By file how many places read bytes there, and the parsers that are given damaged ones."""

BEHIND = "is given only what a checksum or the reader of its container has passed"
OWN = "reads what this very process, or the one that started it, has written"
TRUSTED = "reads the API server, or kubectl's output"
PERSON = "reads what the person who runs it wrote"
HARMLESS: dict[str, tuple[int, str]] = {
    f"{BACKENDS}/canonical/export.py": (1, BEHIND),
    f"{BACKENDS}/checks.py": (1, OWN),  # makes a function of text that it made
    f"{BACKENDS}/codecs.py": (3, BEHIND),  # pickles: see the threat model
    f"{BACKENDS}/columnar/codec.py": (1, BEHIND),
    f"{BACKENDS}/formats.py": (5, "is what the others read by"),
    f"{BACKENDS}/keyed/many_timers.py": (2, BEHIND),
    f"{BACKENDS}/keyed/namespaces.py": (1, BEHIND),
    f"{BACKENDS}/keylayout.py": (2, BEHIND),
    f"{BACKENDS}/keys.py": (1, BEHIND),
    f"{BACKENDS}/operator_state/snapshots.py": (1, BEHIND),
    f"{BACKENDS}/server/restore.py": (1, BEHIND),
    f"{BACKENDS}/server/sidecar.py": (1, OWN),
    f"{BACKENDS}/state_backends/state_backend.py": (2, OWN),
    f"{BACKENDS}/tuning/resolved.py": (1, OWN),
    f"{CONTROL}/kube/client.py": (2, TRUSTED),
    f"{CONTROL}/observe.py": (1, OWN),
    f"{RUNTIME}/api/foreach_sinks.py": (3, BEHIND),
    f"{RUNTIME}/cli/cluster_preflight.py": (2, TRUSTED),
    f"{RUNTIME}/cli/doctor.py": (3, TRUSTED),
    f"{RUNTIME}/cli/kubectl.py": (4, TRUSTED),
    f"{RUNTIME}/cli/output.py": (1, OWN),
    f"{RUNTIME}/cli/preflight.py": (1, PERSON),
    f"{RUNTIME}/cli/render.py": (1, PERSON),
    f"{RUNTIME}/cluster/orders.py": (1, "reads what the operator mounted"),
    f"{RUNTIME}/driver/query.py": (1, OWN),
    f"{RUNTIME}/driver/samples.py": (1, OWN),
    f"{RUNTIME}/engine/range_access.py": (2, OWN),
    f"{RUNTIME}/engine/sparklog.py": (3, OWN),
    f"{RUNTIME}/engine/union_lists.py": (1, BEHIND),
    f"{RUNTIME}/kafka/options.py": (2, PERSON),
    f"{RUNTIME}/offline/value_text.py": (1, PERSON),
    f"{RUNTIME}/preflight.py": (1, "reads what the operator put into its variables"),
}
"""By file the same, and why nobody needs to damage what it reads."""


def test_every_place_that_reads_bytes_is_listed():
    listed = {name: count for name, (count, _) in (*FUZZED.items(), *HARMLESS.items())}
    assert found() == listed, "list it in FUZZED with its parser, or in HARMLESS with the reason"
    assert not FUZZED.keys() & HARMLESS.keys()


@pytest.mark.parametrize("name", FUZZED)
def test_the_parsers_of_a_file_are_fuzzed(name):
    assert set(FUZZED[name][1]) <= {parser.name for parser in BY_BYTES} | DOCUMENTS


def test_no_parser_is_fuzzed_for_nothing():
    meant = {parser for _, parsers in FUZZED.values() for parser in parsers}
    assert {parser.name for parser in BY_BYTES} <= meant


def test_a_place_that_is_new_is_found(tmp_path):
    file = tmp_path / "new.py"
    file.write_text("import json, pickle\ndef f(a):\n    return json.loads(a), pickle.loads\n")
    assert sites(file) == 2
    file.write_text("from x import read_json\nf = read_json(b'1')\n")
    assert sites(file) == 1
