"""Whether what a job describes can go to the workers: found while it is described, not in an epoch.

Decides which part of an object cannot be pickled, in the words of whoever wrote it. Called when an
operator or a sink is added to a job.
"""

from collections.abc import Iterator
from types import FunctionType
from typing import Any

from pyspark import cloudpickle

from moorage_state.errors import UserError

__all__ = ["check_sendable"]


def check_sendable(what: str, uid: str, thing: Any) -> None:
    """Refuse what cannot be pickled.

    Args:
        what: "operator" or "sink".

    Raises:
        UserError: naming the attribute, or the module's name that a method uses.
    """
    error = _refusal(thing)
    if error is None:
        return
    for name, part in _parts(thing):
        if (inner := _refusal(part)) is not None:
            raise UserError(
                f"it cannot be sent to the workers: {what}={uid} {name} cannot be pickled: "
                f"{inner}; make it where it is used, in open(ctx) say"
            ) from error
    raise UserError(
        f"it cannot be sent to the workers: {what}={uid} type={type(thing).__name__}: {error}; "
        f"have it hold configuration, and make everything else in open(ctx)"
    ) from error


def _refusal(thing: Any) -> Exception | None:
    try:
        cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]  # pyspark's copy has no types
    except Exception as error:  # noqa: BLE001 - whatever __reduce__ and __getstate__ raise
        return error
    return None


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Its attributes, and what its methods use of their module, with what to call each."""
    kind = type(thing)
    for name, value in getattr(thing, "__dict__", {}).items():
        yield f"attribute={kind.__name__}.{name} type={type(value).__name__}", value
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            for name in method.__code__.co_names:
                if name in method.__globals__:
                    value = method.__globals__[name]
                    yield f"name={name} type={type(value).__name__}", value
