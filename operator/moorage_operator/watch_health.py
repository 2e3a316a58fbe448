"""Whether lists and watches show what there is: of each namespace, and of each watch.

A namespace is looked after while its last lists went through and no watch in it is refused. One
that is gone, or in which the operator has no rights any more, holds up none of the others. And a
watch can be silently dead: `Canary` notices.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moorage_operator.ports import Kind
from moorage_operator.watch_cache import WATCHED

_log = logging.getLogger("moorage.operator")

Namespace = str | None
"""The name of a namespace; None for all of them at once."""


class WatchedNamespaces:
    """What lists and watches have come to, namespace by namespace.

    Args:
        all_if_none: whether no name means all namespaces at once.
    """

    def __init__(self, names: Iterable[str], *, all_if_none: bool = True) -> None:
        self.names: tuple[Namespace, ...] = ()
        self._listed: dict[Namespace, str] = {}
        self._refused: dict[Namespace, dict[Kind, str]] = {}
        self._primed = False
        self._silent = set[tuple[Namespace, Kind]]()
        self._answered = asyncio.Event()
        self._anew: dict[Namespace, asyncio.Event] = {}
        found = tuple(names)
        for one in found or ((None,) if all_if_none else ()):
            self.add(one)

    def add(self, namespace: Namespace) -> None:
        """It is to be looked after, too."""
        self.names = (*self.names, namespace)
        self._anew[namespace] = asyncio.Event()
        self._silent.update((namespace, kind) for kind in WATCHED)
        self._answered.clear()

    def remove(self, namespace: Namespace) -> None:
        """It is not to be looked after any more."""
        self.names = tuple(one for one in self.names if one != namespace)
        for known in (self._anew, self._listed, self._refused):
            known.pop(namespace, None)
        for kind in WATCHED:
            self._answer(namespace, kind)

    @property
    def primed(self) -> bool:
        """Whether the objects of at least one namespace were listed, if there is any."""
        return self._primed or not self.names

    def problem(self, namespace: Namespace) -> str:
        """Why the namespace is not looked after; empty if it is."""
        refused = self._refused.get(namespace, {})
        unknown = "its objects were not listed yet"
        return self._listed.get(namespace, unknown) or next(iter(refused.values()), "")

    def is_watched(self, namespace: Namespace, kind: Kind) -> bool:
        """Whether a watch may show what happens to objects of this kind there."""
        return kind not in self._refused.get(namespace, {})

    def shown(self) -> Mapping[str, bool]:
        """For each namespace whether it is looked after; an empty name is all of them."""
        return {one or "": not self.problem(one) for one in self.names}

    def listed(self, namespace: Namespace, problem: str = "") -> None:
        """Its objects were listed, or could not be."""
        if namespace not in self._anew:
            return
        before = self.problem(namespace)
        self._listed[namespace] = problem
        self._primed |= not problem
        self._tell(namespace, before)

    def watched(self, namespace: Namespace, kind: Kind, refusal: str = "") -> None:
        """The API server lets objects of a kind be watched there, or refuses it."""
        if namespace not in self._anew:
            return
        before = self.problem(namespace)
        refused = self._refused.setdefault(namespace, {})
        if refusal:
            refused[kind] = refusal
        else:
            refused.pop(kind, None)
        self._answer(namespace, kind)
        self._tell(namespace, before)

    def begun(self, namespace: Namespace, kind: Kind) -> None:
        """A watch begins: what happened before is in lists that begin from now on."""
        if namespace not in self._anew:
            return
        self._anew[namespace].set()
        self._answer(namespace, kind)

    def anew(self, namespace: Namespace) -> asyncio.Event:
        """Set when a watch begins there; to be cleared by who begins to list."""
        return self._anew[namespace]

    async def answered(self) -> None:
        """Wait until each watch has begun, or was refused."""
        if self._silent:
            await self._answered.wait()

    def _answer(self, namespace: Namespace, kind: Kind) -> None:
        self._silent.discard((namespace, kind))
        if not self._silent:
            self._answered.set()

    def _tell(self, namespace: Namespace, before: str) -> None:
        now, where = self.problem(namespace), namespace or "all"
        if now and now != before:
            _log.warning(
                "a namespace is not looked after: namespace=%s error=%s; if it is gone, take it "
                "out of --watch-namespaces, else give the operator its rights there back",
                where,
                now,
            )
        elif before and not now:
            _log.info("a namespace is looked after: namespace=%s", where)


PATIENCE = 120.0
"""Seconds that a watch may be behind a list: it may be connecting anew."""

_Key = tuple[str, str, str]


@dataclass(slots=True)
class Canary:
    """What lists have shown of objects that no watch had shown before."""

    clock: Callable[[], float]  # seconds
    patience: float = PATIENCE  # how far a watch may be behind
    _awaited: dict[_Key, tuple[int, float]] = field(default_factory=dict)
    _missed: dict[_Key, float] = field(default_factory=dict)

    def wants_list(self, namespace: str | None = None) -> bool:
        """Whether another list is to tell if a watch is dead, or the object is gone."""
        waits = (at for key, (_, at) in self._awaited.items() if namespace in {None, key[1]})
        return any(self.clock() - since > self.patience for since in waits)

    def excuse(self, kind: str, namespace: str | None) -> None:
        """There is no watch of the kind that could be behind: it is refused, or begins anew."""
        for key in [one for one in self._awaited if _lies(one, kind, namespace)]:
            self._caught_up(key)

    def seen(self, event: str, kind: str, body: dict[str, Any]) -> None:
        """A watch showed an object, or (event DELETED) that it is gone."""
        key, version = _key(kind, body), _version(body)
        wanted = self._awaited.get(key)
        if wanted is None:
            return
        if event == "DELETED" or version is None or version >= wanted[0]:
            self._caught_up(key)

    def listed(
        self,
        kind: str,
        namespace: str | None,
        news: Mapping[_Key, int],
        is_there: Callable[[_Key], bool],
    ) -> None:
        """All objects of a kind, in one namespace or in all, were listed.

        Args:
            news: those that are newer than what watches and earlier lists had shown, and versions.
            is_there: whether the list has an object.
        """
        now = self.clock()
        for key, version in news.items():
            self._awaited.setdefault(key, (version, now))
        for key in [one for one in self._awaited if _lies(one, kind, namespace)]:
            late = now - self._awaited[key][1]
            if not is_there(key):
                self._caught_up(key)
            elif late > self.patience:
                self._missed.setdefault(key, late)

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
