"""What a store task is asked and what it answers: plain values, and their form as one line of JSON.

The line is how a store task's pod is told what to do and how it answers: by its termination
message, of which the kubelet keeps 4,096 bytes. Pure functions; no I/O.
"""

from typing import Any, Literal

import msgspec

from moorage_state.errors import Bug, NewerFormat, UserError
from moorage_state.formats import decode_document
from moorage_state.snapshots.entries import Owner

STORE_TASK_FORMAT = 1

ANSWER_BYTES = 4000
"""What an encoded answer has at most."""

_MESSAGE_BYTES = 1000

StoreTaskKind = Literal[
    "Inspect", "Verify", "Copy", "Delete", "Release", "DeleteLineage", "Preflight"
]


class StoreTaskRequest(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """One store task.

    Attributes:
        checkpoint_dir: the address of the lineage, for Inspect, Release and DeleteLineage.
        path: the address of the snapshot, for Verify, Copy and Delete; what is to be restored, for
            Preflight, if not the newest checkpoint.
        source: of what Copy makes a savepoint: a savepoint, or a checkpoint directory; `Empty` for
            Preflight of a start that restores nothing.
        digest: of the manifest that Delete may delete; empty for any that `attempt` wrote.
        attempt: who begins the savepoint, for Copy; who began it, for Delete: what it left without
            a manifest goes too.
        owner: who asks, for Copy, Release and DeleteLineage.
    """

    format: int = STORE_TASK_FORMAT
    id: str
    kind: StoreTaskKind
    checkpoint_dir: str = ""
    path: str = ""
    source: str = ""
    digest: str = ""
    attempt: str = ""
    owner: Owner | None = None


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What came of it: a result, of plain JSON data that depend on the kind, or a failure.

    Attributes:
        code: of a failure, a stable word; those of `moorage_state.errors` are among them.
        message: of a failure, for people; no secrets.
        retryable: the same may go well later.
    """

    format: int = STORE_TASK_FORMAT
    id: str
    state: Literal["Completed", "Failed"]
    result: dict[str, Any] = {}
    code: str = ""
    message: str = ""
    retryable: bool = False


def encode_request(request: StoreTaskRequest) -> str:
    """Return the request as one line."""
    return msgspec.json.encode(request).decode()


def decode_request(text: str) -> StoreTaskRequest:
    """Return the request in `text`. Raises UserError if it is none, or of a newer format."""
    try:
        request = decode_document(text.encode(), StoreTaskRequest, "store task", "request")
    except msgspec.DecodeError as error:
        raise UserError(f"not a store task: problem={error}; use one moorage everywhere") from error
    if request.format > STORE_TASK_FORMAT:
        raise UserError(
            f"store task was asked by a newer moorage: format={request.format} "
            f"known={STORE_TASK_FORMAT}; use an image with the operator's version"
        )
    return request


def encode_answer(answer: Answer) -> str:
    """Return the answer as one line of at most `ANSWER_BYTES`.

    What does not fit goes: the end of the message, then the oldest items of the result's lists and
    mappings, which are in order, newest first.
    """
    message = answer.message.encode()[:_MESSAGE_BYTES].decode(errors="ignore")
    short = msgspec.structs.replace(answer, message=message)
    while len(data := msgspec.json.encode(short)) > ANSWER_BYTES:
        result = _shorter(short.result)
        if result is None:
            raise Bug(f"answer does not fit: store_task={answer.id} bytes={len(data)}")
        short = msgspec.structs.replace(short, result=result)
    return data.decode()


def decode_answer(text: str) -> Answer | None:
    """Return the answer in `text`; None if it is none, such as the end of a log.

    One of a newer Moorage that cannot be read is a failure that says so.
    """
    try:
        answer = decode_document(text.encode(), Answer, "answer to a store task", "message")
    except NewerFormat as error:
        found = msgspec.json.decode(text)
        if not isinstance(found, dict) or not {"id", "state", "format"} <= found.keys():
            return None
        return Answer(id=str(found["id"]), state="Failed", code=error.code, message=str(error))
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return answer if answer.format <= STORE_TASK_FORMAT else None


def _shorter(result: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result without the last item of its longest list or mapping; None if none is."""
    longest = max(
        (name for name, value in result.items() if isinstance(value, list | dict) and value),
        key=lambda name: len(msgspec.json.encode(result[name])),
        default=None,
    )
    if longest is None:
        return None
    value = result[longest]
    items = value[:-1] if isinstance(value, list) else dict(list(value.items())[:-1])
    return {**result, longest: items}
