"""Which namespaces are looked after, and why one is not: each fails and comes back by itself.

A namespace is looked after while its last lists went through and no watch in it is refused. One
that is gone, or in which the operator has no rights any more, holds up none of the others.
"""

import logging
from collections.abc import Iterable, Mapping

from moorage_operator.ports import Kind

__all__ = ["Namespace", "Namespaces"]

_log = logging.getLogger("moorage.operator")

Namespace = str | None
"""The name of a namespace; None for all of them at once."""


class Namespaces:
    """What lists and watches have come to, namespace by namespace.

    Args:
        names: the namespaces to look after; empty for all at once.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names: tuple[Namespace, ...] = tuple(names) or (None,)
        self._listed: dict[Namespace, str] = {}
        self._refused: dict[Namespace, dict[Kind, str]] = {}
        self._primed = False

    @property
    def primed(self) -> bool:
        """Whether the objects of at least one namespace were listed."""
        return self._primed

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
        before = self.problem(namespace)
        self._listed[namespace] = problem
        self._primed |= not problem
        self._tell(namespace, before)

    def watched(self, namespace: Namespace, kind: Kind, refusal: str = "") -> None:
        """The API server lets objects of a kind be watched there, or refuses it."""
        before = self.problem(namespace)
        refused = self._refused.setdefault(namespace, {})
        if refusal:
            refused[kind] = refusal
        else:
            refused.pop(kind, None)
        self._tell(namespace, before)

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
