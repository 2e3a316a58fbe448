"""What a reader does with what it does not know: one rule for all that Moorage stores.

A number says the format; one that is not between the first settled one and this release's is
refused. Within a number there may be names that a reader does not know: fields of documents, kinds
of log entries. One that begins with `?` is optional, which its writer decides, and is passed over;
any other is refused by name. Blocks of binary files have one letter for a name, and the optional
ones a small letter. Called by whoever decodes what Moorage stored. See docs/formats.md.
"""

import hashlib
import json
import re
import threading
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec

from moorage_state.errors import CorruptState, NewerFormat

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that it cannot decode: text that is none, arrays in arrays without
end."""

_preparing = threading.Lock()
_prepared: set[Any] = set()

FIRST_FORMAT = 1
"""Before it, layouts changed without their numbers: nothing can tell what such bytes mean."""


def require_known_format(what: str, number: int, known: int, where: str) -> None:
    """Refuse `what` (such as "manifest") whose format is not between the first and this release's.

    Raises `NewerFormat`, naming `where` it is and what to do.
    """
    if number > known:
        raise NewerFormat(
            f"{what} was written by a newer moorage: path={where} format={number} known={known}; "
            "upgrade moorage"
        )
    if number < FIRST_FORMAT:
        raise NewerFormat(
            f"{what} was written by a development version of moorage: path={where} "
            f"format={number} known={FIRST_FORMAT} to {known}; read it with that version, or "
            "begin without it"
        )


def sealed(word: str, number: int, body: bytes) -> bytes:
    """`body` behind a line that proves it: `<word> <format> sha256:<digest> <size in bytes>`."""
    return _seal(word, number, body) + body


def unsealed(word: str, data: bytes, what: str, where: str, advice: str) -> tuple[int, bytes]:
    """The format and the body of what `sealed` made.

    Raises `CorruptState`, with `what` and `where` it is, if any byte of it is another one.
    """
    header = re.match(rb"%b ([0-9]{1,9}) sha256:[0-9a-f]{64} [0-9]{1,18}\n" % word.encode(), data)
    if header is not None:
        number, body = int(header[1]), data[header.end() :]
        if _seal(word, number, body) == header[0]:
            return number, body
    raise CorruptState(f"{what} does not match its checksum", where, advice)


def _seal(word: str, number: int, body: bytes) -> bytes:
    digest = hashlib.sha256(body).hexdigest()
    return f"{word} {number} sha256:{digest} {len(body)}\n".encode()


def is_optional(name: str) -> bool:
    """Whether a reader that does not know the name passes it over."""
    return name.startswith("?")


def unknown_name(what: str, which: str, where: str) -> NewerFormat:
    """The error for a name that is not known and not optional; `which` is such as "kind=x"."""
    return NewerFormat(
        f"{what} was written by a newer moorage, and cannot be read without what this one does not "
        f"know: path={where} {which}; use the version that wrote it, or a newer one"
    )


def refuse_unknown(what: str, names: Collection[str], known: Collection[str], where: str) -> None:
    """Refuse, as `NewerFormat`, a document of which a field is neither known nor optional."""
    for name in sorted(set(names) - set(known)):
        if not is_optional(name):
            raise unknown_name(what, f"field={name}", where)


def decode_document(data: bytes, kind: type[T], what: str, where: str) -> T:
    """Return the JSON document in `data`, without optional fields that `kind` does not have.

    All parts of `kind` forbid unknown fields; `what` and `where` it is are for the message. Raises
    `NewerFormat` where something is not known and not optional, or has another type, and
    `msgspec.DecodeError` for what is no JSON.
    """
    _prepare(kind)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        problem = error
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
    # Rare: only what a newer release wrote is looked at twice.
    try:
        plain = msgspec.json.decode(data)
        return msgspec.json.decode(msgspec.json.encode(_known(plain, _info(kind))), type=kind)
    except msgspec.ValidationError as error:
        problem = error
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
    raise unknown_name(what, f"problem={str(problem)!r}", where) from problem


def read_json(text: str | bytes) -> Any:
    """Return what JSON from elsewhere says. Raises ValueError: it is none, or nested too deep."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _prepare(kind: Any) -> None:
    """Have msgspec look at the type once: two threads that do so at a time crash the process."""
    with _preparing:
        if kind not in _prepared:
            msgspec.json.Decoder(kind)
            _prepared.add(kind)


def _info(kind: Any) -> msgspec.inspect.Type:
    from msgspec import inspect

    return inspect.type_info(kind)


def _known(plain: Any, info: msgspec.inspect.Type) -> Any:
    """Return the document without optional fields that the type does not have."""
    from msgspec import inspect

    match info:
        case inspect.StructType() if isinstance(plain, Mapping):
            fields = {field.encode_name: field.type for field in info.fields}
            return {
                name: _known(value, fields[name]) if name in fields else value
                for name, value in plain.items()
                if name in fields or not is_optional(name)
            }
        case inspect.DictType() if isinstance(plain, Mapping):
            return {name: _known(value, info.value_type) for name, value in plain.items()}
        case inspect.ListType() | inspect.VarTupleType() if isinstance(plain, list):
            return [_known(value, info.item_type) for value in plain]
        case inspect.UnionType():
            return _known(plain, _member(plain, info))
        case _:
            return plain


def _member(plain: Any, info: msgspec.inspect.UnionType) -> msgspec.inspect.Type:
    """The member of a union that the document is of: by its tag, where members have one."""
    from msgspec import inspect

    structs = [kind for kind in info.types if isinstance(kind, inspect.StructType)]
    if isinstance(plain, Mapping):
        for kind in structs:
            if kind.tag is None or plain.get(kind.tag_field or "") == kind.tag:
                return kind
    others = (kind for kind in info.types if not isinstance(kind, inspect.StructType))
    return next(others, inspect.AnyType())
