"""`moorage state`: what is in the state of a checkpoint or savepoint.

Decides arguments and forms of output; what they mean is `moorage.offline`, which works on a store
alone, and of a running job `moorage.queryable`. RocksDB and Arrow are imported when rows are read.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from moorage.cli.output import (
    Output,
    Where,
    complain,
    one_line,
    print_found,
    print_pairs,
    print_table,
    progress_bar,
    stoppable,
)
from moorage.driver.lookup_requests import LookupRequest
from moorage.offline import state_queries
from moorage.offline.lookup import find
from moorage.queryable import QueryableStateClient, read_token
from moorage.texts import size_text, time_text
from moorage_state.errors import UserError
from moorage_state.import_path import after_standard_library
from moorage_state.state_backends import register_backend

state = typer.Typer(
    help="Look into the state of checkpoints and savepoints, or of a running job.",
    no_args_is_help=True,
)

State = Annotated[
    str,
    typer.Argument(metavar="UID/STATE", help="An operator's state, see ls.", show_default=False),
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@state.callback()
def _options(
    *,
    backend: Annotated[
        str,
        typer.Option(
            metavar="MODULE:CLASS",
            help="The state backend of one's own that wrote the files.",
            show_default=False,
        ),
    ] = "",
    code: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER", help="Where its module lies; may be repeated.", show_default=False
        ),
    ] = None,
) -> None:
    if backend:
        after_standard_library(map(str, code or ()))
        register_backend(backend)


@state.command("ls")
def list_command(path: Where, *, output: Output = "table") -> None:
    """List the states of all operators, with their types and sizes."""
    rows = state_queries.list_states(find(path))
    print_found("state ls", {"states": rows}, output, _show_states)


@state.command()
def get(
    path: Where,
    name: State,
    key: Annotated[
        str,
        typer.Argument(
            help="The key; of several columns, a JSON array of their values.", show_default=False
        ),
    ],
    *,
    map_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only this entry of a map.")
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Ask the running job: PATH is JOB.yaml, or the address of its driver's endpoint; "
            "UID/STATE is the name that the state is queryable by.",
        ),
    ] = False,
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAMESPACE", help="With --live: only this window or namespace."),
    ] = None,
    map_key_prefix: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="With --live: entries of a map whose keys begin so."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With an address: where the endpoint's token lies."),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With https: who signed the driver's certificate."),
    ] = None,
    server_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With https: the name in it, JOB-driver.NAMESPACE.svc."),
    ] = None,
    output: Output = "table",
) -> None:
    """Show what one key has in a state; a key that has nothing is no error.

    Times are ISO 8601 with a time zone, binary values hexadecimal digits.
    """
    only_live = (namespace, map_key_prefix, token_file, ca_file, server_name)
    if not live and any(option is not None for option in only_live):
        raise UserError(
            "--namespace, --map-key-prefix, --token-file, --ca-file and --server-name are for a "
            "running job; add --live"
        )
    found: state_queries.KeyState
    with stoppable("nothing was changed"):
        if live:
            asked = LookupRequest(name, [key], True, map_key, map_key_prefix, namespace)
            found = _ask_live(path, token_file, ca_file, server_name, asked)
        else:
            found = state_queries.get(find(path), name, key, map_key)
    if output == "table" and not found.found:
        complain(f"the key has nothing here: state={name} key={key} key_group={found.key_group}")
    else:
        print_found("state get", found, output, _show_value)


@state.command()
def count(
    path: Where,
    name: Annotated[
        str,
        typer.Argument(
            metavar="UID[/STATE]", help="A state, or all of an operator.", show_default=False
        ),
    ],
    *,
    by_group: Annotated[
        bool, typer.Option("--by-group", help="Also count each key group.")
    ] = False,
    output: Output = "table",
) -> None:
    """Count keys, and values, list elements, map entries or timers, exactly."""
    with stoppable("nothing was changed"), progress_bar("counting", "ranges") as bar:
        found = state_queries.count(find(path), name, by_group=by_group, progress=bar)
    print_found("state count", {"states": found}, output, _show_counts)


@state.command()
def export(
    path: Where,
    name: State,
    file: Annotated[
        Path,
        typer.Argument(help="Ends in .parquet, .jsonl or .csv.", show_default=False),
    ],
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    output: Output = "table",
) -> None:
    """Write a state to a file; it is there whole or not at all."""
    from moorage.offline.export import export as export_state

    with stoppable("no file was written"), progress_bar("exporting", "ranges") as bar:
        done = export_state(find(path), name, file, force=force, progress=bar)
    size = f"{done.rows:,} rows, {size_text(done.bytes)}"
    pairs = {"exported": size, "file": done.file}
    print_found("state export", done, output, lambda _: print_pairs(pairs))


def _ask_live(
    path: str,
    token_file: Path | None,
    ca_file: Path | None,
    server_name: str | None,
    asked: LookupRequest,
) -> state_queries.KeyState:
    """What a running job has; `path` is its manifest, or the address of its endpoint."""
    if not path.startswith(("http://", "https://")):
        client = QueryableStateClient.of_local_job(path)
    elif token_file is None:
        raise UserError(f"the endpoint wants a token: address={path}; give --token-file FILE")
    else:
        client = QueryableStateClient(
            path, read_token(token_file), ca_file=ca_file, server_name=server_name
        )
    with client:
        answer = client.whole(asked)
    result = answer["results"][0]
    return LiveKeyState(
        answer["uid"],
        answer["state"],
        answer["kind"],
        result["key"],
        result["keyGroup"],
        result["found"],
        result["value"],
        answer["byNamespace"],
        answer["queryable"],
        result["epoch"],
    )


@dataclass(frozen=True, slots=True)
class LiveKeyState(state_queries.KeyState):
    """What one key has in a running job.

    Attributes:
        epoch: the committed epoch that left it so.
    """

    queryable: str = ""
    epoch: int = 0


def _show_states(found: dict[str, list[state_queries.StateRow]]) -> None:
    header = ("STATE", "KIND", "TYPE", "KEY", "FORMAT", "SIZE")
    print_table(header, [_row(row) for row in found["states"]])


def _show_counts(found: dict[str, list[state_queries.StateCount]]) -> None:
    counts = found["states"]
    print_table(("STATE", "KEYS", "ROWS"), [(f"{c.uid}/{c.state}", c.keys, c.rows) for c in counts])
    for one in counts:
        if one.groups:
            typer.echo()
            header = (f"KEY GROUP OF {one.uid}/{one.state}", "KEYS", "ROWS")
            print_table(header, [(g.key_group, g.keys, g.rows) for g in one.groups])


def _row(row: state_queries.StateRow) -> tuple[str | int | None, ...]:
    ddl = row.type if row.map_key_type is None else f"{row.map_key_type} -> {row.type}"
    size = f"in {size_text(row.operator_bytes)}" if row.bytes is None else size_text(row.bytes)
    return f"{row.uid}/{row.state}", row.kind, ddl, ", ".join(row.key_types), row.format, size


def _show_value(found: state_queries.KeyState) -> None:
    kind, value = "namespaces" if found.by_namespace else found.kind, found.value
    if kind == "map":
        print_table(("KEY", "VALUE"), [(_text(e["key"]), _text(e["value"])) for e in value])
    elif kind == "namespaces":
        rows = [(_text(e["namespace"]), _text(e["value"])) for e in value]
        print_table(("NAMESPACE", "VALUE"), rows)
    elif kind == "timers":
        for time in value:
            typer.echo(_timer(time))
    elif kind == "list":
        for item in value:
            typer.echo(one_line(_text(item)))
    else:
        typer.echo(one_line(_text(value)))


def _timer(milliseconds: int) -> str:
    try:
        return f"{milliseconds}  {time_text(_EPOCH + timedelta(milliseconds=milliseconds))}"
    except OverflowError:
        return str(milliseconds)


def _text(plain: Any) -> str:
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
