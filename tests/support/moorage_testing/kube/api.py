"""What the API server does with objects, in memory and at once: versions, deletion, collection.

`ApiStore` is the server; users, kubelets and controllers in tests call it directly, and nothing
that they do counts as the operator's doing. Refusals carry the code and reason that a real server
gives. Left out: schemas and defaults, who owns which field, permissions.
"""

import json
import uuid
from datetime import UTC, datetime, timedelta

from moorage_operator.kube.rest import MANAGER, RESOURCES
from moorage_testing.kube.collecting import Collecting
from moorage_testing.kube.forms import check_form, encoded, fixed_of_pod
from moorage_testing.kube.merging import (
    PatchTestFailed,
    copied,
    dropped,
    json_patch,
    matches,
    merge_patch,
    pruned,
)
from moorage_testing.kube.refusals import ApiRefusal

__all__ = ["ApiStore"]

_SERVER_FILLED = ("uid", "resourceVersion", "generation", "creationTimestamp")
_TERMINAL = ("Succeeded", "Failed")
_LARGEST = 1_500_000


class _Objects(dict):
    """By (kind, namespace, name), and by kind alone: of a fleet's day most are events."""

    def __init__(self):
        super().__init__()
        self._of_kind = {}

    def of_kind(self, kind):
        """Key and object of each, in the order of their keys."""
        return sorted(self._of_kind.get(kind, {}).items())

    def __setitem__(self, key, found):
        super().__setitem__(key, found)
        self._of_kind.setdefault(key[0], {})[key] = found

    def __delitem__(self, key):
        super().__delitem__(key)
        del self._of_kind[key[0]][key]


class ApiStore(Collecting):
    """The objects of one cluster, and the rules by which they change."""

    def __init__(self, now=lambda: datetime.now(UTC)):
        self._now = now
        self._objects = _Objects()
        self._applied = {}
        # By kind, as definitions say; by key, as each object was written last.
        self._storage, self._stored = {}, {}
        self.version = 1000
        self.watchers = []
        # What is said against an object in a dry run; nothing by default.
        self.admission = lambda _body: ""

    # -- reading

    def get(self, kind, namespace, name):
        """The object, or None."""
        found = self._objects.get(self._key(kind, namespace, name))
        return copied(found)

    def need(self, kind, namespace, name):
        """The object; 404 without it."""
        return copied(self._need(self._key(kind, namespace, name)))

    def list(self, kind, namespace=None, labels=None):
        """Objects by name, of all namespaces if that is None."""
        chosen = (
            found
            for (_, its_namespace, _), found in self._objects.of_kind(kind)
            if namespace in {None, its_namespace}
        )
        return [copied(o) for o in chosen if matches(o["metadata"].get("labels"), labels)]

    def peek(self, kind):
        """Those of all namespaces as they are now; they are not to be changed."""
        return [found for _, found in self._objects.of_kind(kind)]

    def exists(self, kind, namespace, name):
        """Whether it is there."""
        return self._key(kind, namespace, name) in self._objects

    def expire_events(self, before):
        """Forget those that are older, as a server does after an hour."""
        for key, found in self._objects.of_kind("Event"):
            if datetime.fromisoformat(found["metadata"]["creationTimestamp"]) < before:
                del self._objects[key]
                del self._stored[key]

    def everything(self):
        """All objects."""
        return [copied(found) for found in self._objects.values()]

    # -- writing

    def create(self, body):
        """POST."""
        body = encoded(pruned(body))
        meta = body.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        key = self._key(body["kind"], meta.get("namespace"), meta.get("name"))
        if meta.get("resourceVersion"):
            raise ApiRefusal(400, "BadRequest", "resourceVersion should not be set on creation")
        self._open_namespace(key)
        if key in self._objects:
            going = "object is being deleted: " if self._going(key) else ""
            raise ApiRefusal(409, "AlreadyExists", f"{going}{key[0]} {key[2]!r} already exists")
        for field in (*_SERVER_FILLED, "deletionTimestamp", "deletionGracePeriodSeconds"):
            meta.pop(field, None)
        if self._namespaced(key[0]):
            meta["namespace"] = key[1]
        meta |= {"uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": self._stamp()}
        if self._has_status(key[0]):
            body.pop("status", None)
        if key[0] == "Pod":
            body["status"] = {"phase": "Pending"}
        return self._store(key, body, "ADDED")

    def try_create(self, body):
        """POST in a dry run."""
        said = self.admission(body)
        if said:
            raise ApiRefusal(403, "Forbidden", said)
        meta = body["metadata"]
        key = self._key(body["kind"], meta.get("namespace"), meta["name"])
        self._open_namespace(key)
        if key in self._objects:
            raise ApiRefusal(409, "AlreadyExists", f"{key[0]} {key[2]!r} already exists")
        return body

    def replace(self, body):
        """PUT of the main resource."""
        key, old = self._of_body(body)
        return self._change(key, old, encoded(pruned(body)))

    def replace_status(self, body):
        """PUT of /status; only the status of the body counts."""
        key, old = self._of_body(body)
        if not body["metadata"].get("resourceVersion"):
            raise ApiRefusal(422, "Invalid", "metadata.resourceVersion: must be specified")
        new = {name: value for name, value in old.items() if name != "status"}
        if body.get("status") is not None:
            new["status"] = pruned(body["status"])
        return self._store_if_new(key, old, new)

    def patch(self, kind, namespace, name, patch, subresource=""):
        """A merge patch if that is an object, a JSON patch if it is a list."""
        key = self._key(kind, namespace, name)
        old = self._need(key)
        try:
            put = json_patch if isinstance(patch, list) else merge_patch
            new = copied(put(old, patch))
        except (PatchTestFailed, KeyError, IndexError) as error:
            raise ApiRefusal(422, "Invalid", f"the patch does not fit: {error}") from error
        if isinstance(patch, dict):
            self._check_version(key, old, patch.get("metadata") or {})
        if subresource == "status":
            return self._store_if_new(key, old, {**old, "status": new.get("status", {})})
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        return self._change(key, old, new)

    def apply(self, body, manager=MANAGER, subresource=""):
        """Server-side apply, forced: what this manager applied before and not now is dropped."""
        body = encoded(pruned(body))
        meta = body.get("metadata") or {}
        key = self._key(body["kind"], meta.get("namespace"), meta.get("name"))
        old = self._objects.get(key)
        if old is None:
            if subresource:
                raise self._missing(key)
            if meta.get("uid"):
                raise ApiRefusal(409, "Conflict", "uid mismatch: there is no such object")
            meta.pop("resourceVersion", None)
            made = self.create(body)
        else:
            self._check_version(key, old, meta)
            made = self._apply_over(key, old, body, manager, subresource)
        mine = {k: v for k, v in body.items() if k not in {"apiVersion", "kind"}}
        self._applied[made["metadata"]["uid"], manager, subresource] = mine
        return made

    def delete(
        self, kind, namespace, name, *, uid=None, version=None, grace=None, propagation="Background"
    ):
        """DELETE with preconditions; pods on a node linger until their kubelet has killed them."""
        key = self._key(kind, namespace, name)
        old = self._need(key)
        meta = old["metadata"]
        if uid is not None and uid != meta["uid"]:
            raise ApiRefusal(409, "Conflict", f"precondition failed: uid is {meta['uid']}")
        if version is not None and version != meta["resourceVersion"]:
            raise ApiRefusal(409, "Conflict", "precondition failed: resourceVersion")
        new = copied(old)
        if propagation == "Foreground" and not meta.get("deletionTimestamp"):
            new["metadata"]["finalizers"] = [*meta.get("finalizers", []), "foregroundDeletion"]
        if kind == "Namespace":
            return self._terminate(key, old)
        seconds = self._grace(old, grace)
        if not new["metadata"].get("finalizers") and seconds == 0:
            return self._remove(key, old)
        self._mark(key, new, seconds)
        return self._store_if_new(key, old, new)

    # -- definitions

    def store_as(self, kind, version):
        """Objects of a kind are stored in this version of the API when they are next written."""
        self._storage[kind] = version

    def stored(self, kind):
        """By name, the version in which each object of a kind is stored."""
        return {key[2]: self._stored[key] for key, _ in self._objects.of_kind(kind)}

    # -- controllers and kubelets

    def set_status(self, kind, namespace, name, **status):
        """Put fields into the status, as a kubelet or another controller does."""
        return self.patch(kind, namespace, name, {"status": status}, subresource="status")

    def bind(self, namespace, name, node):
        """Give a pod its node, as a scheduler does."""
        return self.patch("Pod", namespace, name, {"spec": {"nodeName": node}})

    def tell_news(self):
        """Call the watchers back about what changed: here they hear of it at once."""

    # -- rules

    def _change(self, key, old, new):
        """Store a new main part over the old one, under the rules of metadata and spec."""
        new = copied(new)
        meta, was = new.setdefault("metadata", {}), old["metadata"]
        self._check_version(key, old, meta)
        for field in (*_SERVER_FILLED, "deletionTimestamp", "deletionGracePeriodSeconds"):
            meta.pop(field, None)
            if field in was:
                meta[field] = was[field]
        meta["name"], new["kind"], new["apiVersion"] = was["name"], old["kind"], old["apiVersion"]
        if "namespace" in was:
            meta["namespace"] = was["namespace"]
        if self._has_status(key[0]):
            new.pop("status", None)
            new |= {"status": old["status"]} if "status" in old else {}
        self._refuse_change(key, old, new)
        if new.get("spec") != old.get("spec"):
            meta["generation"] = was["generation"] + 1
        return self._store_if_new(key, old, new)

    def _refuse_change(self, key, old, new):
        meta, was = new["metadata"], old["metadata"]
        added = set(meta.get("finalizers", [])) - set(was.get("finalizers", []))
        if was.get("deletionTimestamp") and added:
            why = "no new finalizers can be added if the object is being deleted"
            raise ApiRefusal(422, "Invalid", f"metadata.finalizers: Forbidden: {why}")
        if key[0] == "ControllerRevision" and new.get("data") != old.get("data"):
            raise ApiRefusal(422, "Invalid", "data: Invalid value: field is immutable")
        if key[0] == "Pod" and fixed_of_pod(new) != fixed_of_pod(old):
            raise ApiRefusal(422, "Invalid", "spec: Forbidden: pod updates may not change fields")
        if old.get("immutable") and new.get("data") != old.get("data"):
            raise ApiRefusal(422, "Invalid", "data: Forbidden: field is immutable")

    def _apply_over(self, key, old, body, manager, subresource):
        before = self._applied.get((old["metadata"]["uid"], manager, subresource), {})
        finalizers = set(body["metadata"].get("finalizers", []))
        body["metadata"].pop("resourceVersion", None)
        kept = [f for f in old["metadata"].get("finalizers", []) if f not in finalizers]
        if finalizers:
            body["metadata"]["finalizers"] = kept + sorted(finalizers)
        new = merge_patch(dropped(old, before, body), body)
        if subresource == "status":
            return self._store_if_new(key, old, {**old, "status": new.get("status", {})})
        return self._change(key, old, new)

    def _check_version(self, key, old, meta):
        was = old["metadata"]
        if meta.get("uid") not in {None, was["uid"]}:
            raise ApiRefusal(409, "Conflict", f"precondition failed: uid is {was['uid']}")
        if meta.get("resourceVersion") not in {None, was["resourceVersion"]}:
            why = "the object has been modified; please apply your changes to the latest version"
            raise ApiRefusal(409, "Conflict", f"operation on {key[0]} {key[2]!r}: {why}")

    def _store_if_new(self, key, old, new):
        # What is the same is written all the same where it would be stored in another version.
        if new == old and self._stored[key] == self._stores(key[0]):
            return copied(old)
        meta = new["metadata"]
        dying = key[0] == "Pod" and meta.get("deletionGracePeriodSeconds")
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and not dying:
            return self._remove(key, new)
        return self._store(key, new, "MODIFIED")

    def _store(self, key, new, event):
        check_form(key, new)
        if len(json.dumps(new)) > _LARGEST:
            raise ApiRefusal(500, "InternalError", "etcdserver: request is too large")
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        old, meta = self._objects.get(key, {"metadata": {}}), new["metadata"]
        owners, had = meta.get("ownerReferences"), old["metadata"].get("ownerReferences")
        self._uncollected |= bool(meta.get("deletionTimestamp")) or owners != had
        self._objects[key], self._stored[key] = copied(new), self._stores(key[0])
        self._tell(event, new)
        return copied(new)

    def _remove(self, key, last):
        self.version += 1
        gone = copied(last)
        gone["metadata"]["resourceVersion"] = str(self.version)
        del self._objects[key]
        del self._stored[key]
        self._uncollected = True
        self._tell("DELETED", gone)
        return gone

    def _tell(self, event, found):
        for watcher in list(self.watchers):
            watcher(event, copied(found))

    def _mark(self, key, new, seconds):
        meta = new["metadata"]
        shorter = seconds < meta.get("deletionGracePeriodSeconds", seconds + 1)
        if "deletionTimestamp" not in meta:
            meta["generation"] += 1
        if "deletionTimestamp" not in meta or (key[0] == "Pod" and shorter):
            meta["deletionTimestamp"] = self._stamp(seconds)
            meta["deletionGracePeriodSeconds"] = seconds

    def _grace(self, found, asked):
        if found["kind"] != "Pod":
            return 0
        spec, status = found.get("spec", {}), found.get("status", {})
        if not spec.get("nodeName") or status.get("phase") in _TERMINAL:
            return 0
        return spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked

    def _terminate(self, key, old):
        new = copied(old)
        new["metadata"].setdefault("deletionTimestamp", self._stamp())
        new["status"] = {"phase": "Terminating"}
        return self._store(key, new, "MODIFIED") if new != old else new

    # -- keys

    def _key(self, kind, namespace, name):
        if not name:
            raise ApiRefusal(422, "Invalid", "metadata.name: Required value")
        return (kind, (namespace or "default") if self._namespaced(kind) else "", name)

    def _of_body(self, body):
        meta = body["metadata"]
        key = self._key(body["kind"], meta.get("namespace"), meta.get("name"))
        old = self._need(key)
        self._check_version(key, old, meta)
        return key, old

    def _need(self, key):
        if key not in self._objects:
            raise self._missing(key)
        return self._objects[key]

    def _missing(self, key):
        return ApiRefusal(404, "NotFound", f"{key[0]} {key[2]!r} not found")

    def _going(self, key):
        return bool(self._objects[key]["metadata"].get("deletionTimestamp"))

    def _terminating(self, namespace):
        found = self._objects.get(("Namespace", "", namespace))
        return found is not None and bool(found["metadata"].get("deletionTimestamp"))

    def _open_namespace(self, key):
        kind, namespace, name = key
        if kind == "Namespace" or not namespace:
            return
        if ("Namespace", "", namespace) not in self._objects:
            self._make_namespace(namespace)
        if self._terminating(namespace):
            why = f"unable to create {name}: namespace {namespace} is being terminated"
            causes = [{"reason": "NamespaceTerminating", "message": why, "field": "metadata"}]
            raise ApiRefusal(403, "Forbidden", why, {"causes": causes})

    def _make_namespace(self, name):
        """With the accounts that jobs run under, so that tests need not make them."""
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for account in ("default", "spark"):
            meta = {"name": account, "namespace": name}
            self.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})

    def _namespaced(self, kind):
        return kind not in RESOURCES or RESOURCES[kind].namespaced

    def _stores(self, kind):
        version = RESOURCES[kind].version if kind in RESOURCES else "v1"
        return self._storage.get(kind, version)

    def _has_status(self, kind):
        return kind in RESOURCES and RESOURCES[kind].status

    def _stamp(self, later=0):
        return (self._now() + timedelta(seconds=later)).strftime("%Y-%m-%dT%H:%M:%SZ")
