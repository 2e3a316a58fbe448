"""What controllers do with the objects of `ApiStore`: what has no owner goes, and what is in a
namespace that goes.
"""

from collections.abc import Callable
from typing import Any

__all__ = ["Collecting"]


class Collecting:
    """The garbage collector and the namespace controller, beside the server that they call."""

    _objects: Any
    # Whether anything has changed since that could leave work for them
    _uncollected: bool = True
    _key: Callable[..., Any]
    _going: Callable[..., bool]
    _remove: Callable[..., Any]
    _terminating: Callable[..., bool]
    delete: Callable[..., Any]
    patch: Callable[..., Any]

    def collect(self):
        """Run the garbage collector and the namespace controller until nothing is left to do."""
        if not self._uncollected:
            return
        while self._collect_once():
            pass
        self._uncollected = False

    def _collect_once(self):
        by_uid = {o["metadata"]["uid"] for o in self._objects.values()}
        for key, found in list(self._objects.items()):
            meta = found["metadata"]
            owners = meta.get("ownerReferences", [])
            alive = [owner for owner in owners if self._lives(owner, key[1], by_uid)]
            if owners and not alive and not self._going(key):
                self.delete(*key)
                return True
            if owners and alive and len(alive) < len(owners):
                self._patch_meta(key, ownerReferences=alive)
                return True
            if self._foreground_step(key, meta) or self._namespace_step(key):
                return True
        return False

    def _patch_meta(self, key, **fields):
        kind, namespace, name = key
        self.patch(kind, namespace, name, {"metadata": fields})

    def _lives(self, owner, namespace, by_uid):
        if owner["uid"] not in by_uid:
            return False
        found = self._objects.get(self._key(owner["kind"], namespace, owner["name"]))
        return found is not None and found["metadata"]["uid"] == owner["uid"]

    def _foreground_step(self, key, meta):
        if "foregroundDeletion" not in meta.get("finalizers", []):
            return False
        children = [
            k
            for k, child in self._objects.items()
            for owner in child["metadata"].get("ownerReferences", [])
            if owner["uid"] == meta["uid"]
        ]
        living = [child for child in children if not self._going(child)]
        if living:
            self.delete(*living[0])
        elif not children:
            left = [f for f in meta["finalizers"] if f != "foregroundDeletion"]
            self._patch_meta(key, finalizers=left)
        return bool(living) or not children

    def _namespace_step(self, key):
        if key[0] == "Namespace" or not self._terminating(key[1]):
            if key[0] != "Namespace" or not self._going(key):
                return False
            if any(k[1] == key[2] for k in self._objects if k[0] != "Namespace"):
                return False
            self._remove(key, self._objects[key])
            return True
        if self._going(key):
            return False
        self.delete(*key)
        return True
