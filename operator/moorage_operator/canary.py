"""Notices watches that are silently dead: what lists show, the watches must show as well.

Every change of an object is a canary. A list that finds an object in a version that no watch has
shown starts a clock; if the watch says nothing of that object for long enough, it is dead, whatever
its connection looks like, and only a new process helps. It counts as dead only once a later list
shows it as well: the object may be gone by then, and where nothing can be listed, nothing is known,
and a new process would not help. Times are seconds on a clock that only goes forward. Without
changes nothing can be told, and nothing is missed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PATIENCE", "Canary"]

PATIENCE = 120.0
"""Seconds that a watch may be behind a list: it may be connecting anew."""

_Key = tuple[str, str, str]


@dataclass(slots=True)
class Canary:
    """What watches and lists have shown of each object.

    Attributes:
        clock: seconds.
        patience: how far a watch may be behind.
    """

    clock: Callable[[], float]
    patience: float = PATIENCE
    _seen: dict[_Key, int] = field(default_factory=dict)
    _awaited: dict[_Key, tuple[int, float]] = field(default_factory=dict)
    _missed: dict[_Key, float] = field(default_factory=dict)

    def wants_list(self, namespace: str | None = None) -> bool:
        """Whether another list is to tell if a watch is behind, or the object is gone."""
        return any(namespace in {None, key[1]} for key in self._awaited)

    def excuse(self, kind: str, namespace: str | None) -> None:
        """There is no watch of the kind that could be behind: the API server refuses it."""
        for key in [one for one in self._awaited if _lies(one, kind, namespace)]:
            self._caught_up(key)

    def seen(self, event: str, kind: str, body: dict[str, Any]) -> None:
        """A watch showed an object, or (event DELETED) that it is gone."""
        key, version = _key(kind, body), _version(body)
        if event == "DELETED" or version is None:
            self._seen.pop(key, None)
            self._caught_up(key)
            return
        self._seen[key] = version
        wanted = self._awaited.get(key)
        if wanted is not None and version >= wanted[0]:
            self._caught_up(key)

    def listed(self, kind: str, namespace: str | None, bodies: list[dict[str, Any]]) -> None:
        """All objects of a kind, in one namespace or in all: as the API server has them now."""
        found = {_key(kind, body): _version(body) for body in bodies}
        known = {*self._seen, *self._awaited}
        for key in [one for one in known if one not in found and _lies(one, kind, namespace)]:
            self._seen.pop(key, None)
            self._caught_up(key)
        now = self.clock()
        for key, version in found.items():
            if version is not None and self._seen.get(key, -1) < version:
                _, since = self._awaited.setdefault(key, (version, now))
                if now - since > self.patience:
                    self._missed.setdefault(key, now - since)

    def trouble(self) -> str:
        """Which watch is dead; empty if none is known to be."""
        for key, seconds in self._missed.items():
            kind, namespace, name = key
            return (
                f"the watch of {kind} is dead: {namespace}/{name} has version "
                f"{self._awaited[key][0]} for {seconds:.0f} s and no event came; the process must "
                f"start anew"
            )
        return ""

    def _caught_up(self, key: _Key) -> None:
        self._awaited.pop(key, None)
        self._missed.pop(key, None)


def _key(kind: str, body: dict[str, Any]) -> _Key:
    meta = body["metadata"]
    return kind, meta.get("namespace", ""), meta["name"]


def _lies(key: _Key, kind: str, namespace: str | None) -> bool:
    return key[0] == kind and namespace in {None, key[1]}


def _version(body: dict[str, Any]) -> int | None:
    """Resource versions can be compared as numbers; of what is none, nothing is said."""
    text = body["metadata"].get("resourceVersion", "")
    return int(text) if text.isdecimal() else None
