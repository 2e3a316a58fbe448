"""Whether any node could hold a pod if it were empty, as far as nodes themselves say. Pure.

What else runs is not looked at: who finds no node here waits for ever, unless somebody adds nodes
of another kind. So it is said, and stops nothing: a cluster may make them as they are needed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from moorage_operator.pod_resources import amount_of, items, mapping, shown, taken
from moorage_operator.ports import Object

_PASSES = "node.kubernetes.io/"
"""Taints of a node's condition, such as being drained: they come and go."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NONE = Decimal(0)


class Places:
    """What nodes say about one pod, node by node."""

    def __init__(self, pod: Object) -> None:
        self._spec = mapping(pod.get("spec"))
        self._wanted = taken(self._spec, "requests")
        self._why: Counter[str] = Counter()
        self._most: dict[str, Decimal] = {}
        self.found = False  # whether one could hold it

    def look(self, nodes: Iterable[Object]) -> bool:
        """Look at more nodes; say whether one of all could hold it."""
        for node in nodes:
            why = next(self._against(node), "")
            if not why:
                self.found = True
                return True
            self._why[why] += 1
        return self.found

    @property
    def text(self) -> str:
        """Why none could, for people; empty where one could, or none was seen."""
        if self.found or not self._why:
            return ""
        parts = ", ".join(f"{n} {self._said(why)}" for why, n in self._why.most_common())
        return f"of {self._why.total()} nodes {parts}"

    def _against(self, node: Object) -> Iterator[str]:
        if not _is_chosen(self._spec, node):
            yield "labels"
        if any(not _is_borne(self._spec, taint) for taint in _taints(node)):
            yield "taints"
        room = mapping(mapping(node.get("status")).get("allocatable"))
        if not room:
            return  # it has not said yet
        for name, wanted in sorted(self._wanted.items()):
            has = amount_of(room.get(name, "0"))
            self._most[name] = max(has, self._most.get(name, _NONE))
            if wanted > has:
                yield name

    def _said(self, why: str) -> str:
        if why == "labels":
            return "not chosen by its nodeSelector or affinity"
        if why == "taints":
            return "with a taint that it does not tolerate"
        most, wanted = shown(why, self._most[why]), shown(why, self._wanted[why])
        return f"with too little {why} ({most} at most, and it asks for {wanted})"


def _taints(node: Object) -> Iterator[Mapping[str, Any]]:
    for one in items(mapping(node.get("spec")), "taints"):
        lasts = not str(one.get("key", "")).startswith(_PASSES)
        if lasts and one.get("effect") in ("NoSchedule", "NoExecute"):
            yield one


def _is_borne(spec: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    for one in items(spec, "tolerations"):
        if one.get("effect") not in (None, "", taint.get("effect")):
            continue
        if one.get("operator") == "Exists" and one.get("key") in (None, "", taint.get("key")):
            return True
        same = (one.get("key"), one.get("value") or "") == (taint["key"], taint.get("value") or "")
        if one.get("operator") in (None, "", "Equal") and same:
            return True
    return False


def _is_chosen(spec: Mapping[str, Any], node: Object) -> bool:
    meta = mapping(node.get("metadata"))
    labels, name = mapping(meta.get("labels")), str(meta.get("name", ""))
    if spec.get("nodeName") not in (None, "", name):
        return False
    if any(labels.get(key) != value for key, value in mapping(spec.get("nodeSelector")).items()):
        return False
    affinity = mapping(mapping(spec.get("affinity")).get("nodeAffinity"))
    if affinity.get(_REQUIRED) is None:
        return True
    return any(
        all(_fits(one, labels) for one in items(term, "matchExpressions"))
        and all(_fits(one, {"metadata.name": name}) for one in items(term, "matchFields"))
        for term in items(mapping(affinity[_REQUIRED]), "nodeSelectorTerms")
        # A term without conditions chooses no node.
        if term.get("matchExpressions") or term.get("matchFields")
    )


def _fits(expression: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    value, values = labels.get(str(expression.get("key"))), expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as how:
            return _compares(how, value, values)
    return False


def _compares(how: str, value: object, values: Any) -> bool:
    try:
        label, bound = int(str(value)), int(str(next(iter(values))))
    except (ValueError, StopIteration, TypeError):
        return False
    return label > bound if how == "Gt" else label < bound
