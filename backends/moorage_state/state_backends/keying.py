"""From a key as a user has it to where its state is: key group, canonical bytes, stored prefix.

Called for every record by the backends in process, so what was found is kept. One for each backend
instance; not thread-safe.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from moorage_state.canonical.hashing import key_groups
from moorage_state.checks import StateTypeError
from moorage_state.codecs import checker, plain_type
from moorage_state.errors import UserError
from moorage_state.keygroups import MAX_PARALLELISM_LIMIT, KeyGroupRange
from moorage_state.keylayout import key_prefix
from moorage_state.keys import KeyCodec

_REMEMBERED = 50_000
_OPERATOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


class Located(NamedTuple):
    """A key: the place of its key group in the range, its bytes, what its stored state begins with.

    `key` is what users see: the value, or a tuple for several columns.
    """

    group: int
    raw: bytes
    prefix: bytes
    key: Any


class KeyLocator:
    """Finds keys of one operator within one range of key groups.

    Raises:
        ValueError: a type that keys cannot have, or a range outside of the key groups.
        UserError: `key_hash` is not known.
    """

    def __init__(
        self,
        key_types: Sequence[str],
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        key_hash: str,
    ) -> None:
        _check_range(number_of_key_groups, key_group_range)
        self._codec = KeyCodec(key_types)
        self._groups = key_groups(key_types, number_of_key_groups, key_hash)
        self._range = key_group_range
        self._checks = [_key_checker(ddl) for ddl in key_types]
        self._single = len(key_types) == 1
        # Only of this very type: 1, 1.0 and True are one key of a dictionary, and three keys.
        self._plain = plain_type(key_types[0]) if self._single else None
        self._known: dict[Any, Located] = {}

    def find(self, key: Any) -> Located:
        """Where the key is.

        Raises:
            StateTypeError: it is not of the declared types.
            UserError: its key group is another subtask's.
        """
        if type(key) is self._plain:
            found = self._known.get(key)
            return found if found is not None else self._locate(key)
        return self._locate(key)

    def decode(self, raw: bytes) -> Any:
        """The key whose bytes these are."""
        values = self._codec.decode(raw)
        return values[0] if self._single else values

    def at(self, group: int, raw: bytes) -> Located:
        """The key with these bytes in this key group, counted from the first of the range."""
        return Located(group, raw, key_prefix(self._range.start + group, raw), self.decode(raw))

    def _locate(self, key: Any) -> Located:
        values = self._checked(key)
        (group,) = self._groups([values])
        if group not in self._range:
            raise UserError(
                f"key belongs to another subtask: key={key!r:.80} key_group={group} "
                f"range={self._range.start}-{self._range.end}; rows have to be sent by the same "
                f"key types and key hash as the state backend was made with"
            )
        raw = self._codec.encode(values)
        located = Located(
            group - self._range.start,
            raw,
            key_prefix(group, raw),
            values[0] if self._single else values,
        )
        if type(key) is self._plain:
            if len(self._known) >= _REMEMBERED:
                # All at once: to know which was used longest ago would cost every record more.
                self._known.clear()
            self._known[key] = located
        return located

    def _checked(self, key: Any) -> tuple[Any, ...]:
        if self._single:
            return (self._checks[0](key),)
        if not isinstance(key, tuple) or len(key) != len(self._checks):
            raise StateTypeError(
                f"a key of {len(self._checks)} columns is a tuple of so many values: "
                f"key={key!r:.80} type={type(key).__name__}"
            )
        return tuple(check(value) for check, value in zip(self._checks, key, strict=True))


class _Disposed(KeyLocator):
    """Finds nothing any more; in the place of the locator, so that no record pays for a check."""

    def __init__(self, gone: Callable[[], Exception]) -> None:
        self._gone = gone

    def find(self, key: Any) -> Located:  # noqa: ARG002
        raise self._gone()

    def decode(self, raw: bytes) -> Any:  # noqa: ARG002
        raise self._gone()

    def at(self, group: int, raw: bytes) -> Located:  # noqa: ARG002
        raise self._gone()


def disposed(gone: Callable[[], Exception]) -> KeyLocator:
    """One that raises what `gone` gives for every key."""
    return _Disposed(gone)


def require_operator(operator: str) -> None:
    """Refuse an operator's uid that no snapshot could be named by.

    Raises:
        UserError: naming it.
    """
    if not _OPERATOR.match(operator):
        raise UserError(
            f"operator identifier cannot name state: operator={operator!r:.80}; use 1 to 63 "
            f"letters, digits, dots, dashes and underscores, beginning with a letter or digit"
        )


def require_namespace(state: str, namespace: Any, namespace_type: str | None) -> None:
    """Refuse a namespace of a state that has none, and none of a state that has.

    Raises:
        UserError: naming the state.
    """
    if (namespace is None) != (namespace_type is None):
        raise UserError(
            f"state was declared {'without' if namespace_type is None else 'with'} namespaces: "
            f"state={state} namespace={namespace!r:.80}; declare another state for the other use"
        )


def _key_checker(ddl: str) -> Callable[[Any], Any]:
    check = checker(ddl)

    def checked(value: Any) -> Any:
        try:
            found = check(value)
            if isinstance(found, str):
                found.encode()
        except (StateTypeError, UnicodeEncodeError) as error:
            raise StateTypeError(
                f"a key is not of its declared type: key={value!r:.80} declared={ddl} "
                f"type={type(value).__name__}"
            ) from error
        return found

    return checked


def _check_range(number_of_key_groups: int, key_group_range: KeyGroupRange) -> None:
    start, end = key_group_range.start, key_group_range.end
    if not 0 < number_of_key_groups <= MAX_PARALLELISM_LIMIT:
        raise ValueError(
            f"there are 1 to {MAX_PARALLELISM_LIMIT} key groups: number={number_of_key_groups}"
        )
    if not 0 <= start <= end < number_of_key_groups:
        raise ValueError(
            f"key groups of a subtask are among those of the operator: range={start}-{end} "
            f"number={number_of_key_groups}"
        )
