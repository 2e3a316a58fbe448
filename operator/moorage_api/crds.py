"""The two CustomResourceDefinitions, made from the models: names, columns, subresources, schemas.

`scripts/crds.py` writes them to `crds/`; nothing at run time depends on this module. A cluster asks
more of a manifest than one machine does; what of that a schema can say is added here, the rest is
`cluster_problems`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from moorage_api.job import API_VERSION, KIND, ApiVersion, JobSpec
from moorage_api.model import Model
from moorage_api.names import JOB_NAME_LENGTH, JOB_NAME_PATTERN
from moorage_api.quantities import Duration, Quantity
from moorage_api.snapshot import SNAPSHOT_KIND, SnapshotSpec, SnapshotStatus
from moorage_api.status import JobStatus

LIST_KEYS: dict[str, tuple[str, ...]] = {"Condition": ("type",), "EnvVar": ("name",)}
"""Model of the items to their keys; the API server refuses two items of one key."""


Schema = dict[str, Any]

# Of what pydantic says; the rest has no place in a structural schema.
_KEPT = (
    "type",
    "format",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "x-kubernetes-int-or-string",
    "x-kubernetes-validations",
)


_BOUNDS = frozenset(_KEPT) - {"type", "format", "x-kubernetes-int-or-string"}


def spec_schema(model: type[BaseModel]) -> Schema:
    """The schema of what users write: strict, with defaults, bounds and rules."""
    return _object(model, defaults=True)


def status_schema(model: type[BaseModel]) -> Schema:
    """The schema of what the operator writes: types only.

    No defaults, nothing required, no enums: a definition that is older than the operator must not
    keep it from writing down what it is about to do.
    """
    return _typed(_object(model, defaults=False))


def _typed(node: Schema) -> Schema:
    """The node without what bounds its values."""
    kept = {key: value for key, value in node.items() if key not in _BOUNDS}
    if "properties" in kept:
        kept["properties"] = {name: _typed(inner) for name, inner in kept["properties"].items()}
    if "items" in kept:
        kept["items"] = _typed(kept["items"])
    return kept


def _object(model: type[BaseModel], *, defaults: bool) -> Schema:
    said = model.model_json_schema(by_alias=True, mode="validation")
    definitions = said.get("$defs", {})
    properties, required = {}, []
    for name, field in model.model_fields.items():
        alias = field.alias or name
        node = _field(field, said["properties"][alias], definitions, defaults=defaults)
        properties[alias] = _described(node, field.description)
        if defaults and field.is_required():
            required.append(alias)
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if defaults and said.get("x-kubernetes-validations"):
        schema["x-kubernetes-validations"] = said["x-kubernetes-validations"]
    return _described(schema, model.__doc__)


def _field(field: FieldInfo, said: Schema, definitions: Schema, *, defaults: bool) -> Schema:
    inner, many = _model_in(field.annotation), _is_list(field.annotation)
    if inner and many:
        node: Schema = {"type": "array", "items": _object(inner, defaults=defaults)}
        node |= {key: said[key] for key in ("maxItems",) if key in said}
        node |= _list_type(inner)
        if keys := node.get("x-kubernetes-list-map-keys"):
            node["items"]["required"] = list(
                dict.fromkeys([*keys, *node["items"].get("required", [])])
            )
    elif inner:
        node = _object(inner, defaults=defaults)
    else:
        node = _plain(said, definitions)
    default = _default(field) if defaults else None
    return node if default is None else {**node, "default": default}


def _plain(said: Schema, definitions: Schema) -> Schema:
    """A schema without models in it."""
    if "$ref" in said:
        said = definitions[said["$ref"].rpartition("/")[2]]
    if said.get("x-kubernetes-int-or-string"):
        kept = {key: said[key] for key in _KEPT if key in said and said[key] != []}
        return {"anyOf": said["anyOf"], **kept}
    if "anyOf" in said:
        return _plain(_one_of(said["anyOf"]), definitions)
    if "const" in said:
        said = {**said, "enum": [said["const"]]}
    node = {key: said[key] for key in _KEPT if key in said and said[key] != []}
    if node.get("type") == "integer":
        node["format"] = "int64" if "maximum" not in node else "int32"
    if node.get("type") == "array":
        node |= {"items": _plain(said["items"], definitions), "x-kubernetes-list-type": "atomic"}
    if node.get("type") == "object":
        node |= _mapping(said, definitions)
    return node


def _one_of(choices: list[Schema]) -> Schema:
    """The one that says the most general thing; null is the same as leaving a field out."""
    real = [choice for choice in choices if choice.get("type") != "null"]
    texts = [c for c in real if c.get("type") == "string" and "enum" not in c]
    if len(real) > 1 and not texts:
        raise ValueError(f"no structural schema has this choice: {choices}")
    return real[0] if len(real) == 1 else texts[0]


def _mapping(said: Schema, definitions: Schema) -> Schema:
    values = said.get("additionalProperties")
    if "patternProperties" in said:
        (values,) = said["patternProperties"].values()
    if not isinstance(values, Mapping) or not values:
        return {"x-kubernetes-preserve-unknown-fields": True}
    inner = _plain(dict(values), definitions)
    names = said.get("propertyNames", {}).get("enum")
    if names:
        return {"properties": {name: dict(inner) for name in names}}
    return {"additionalProperties": inner}


def _list_type(inner: type[BaseModel]) -> Schema:
    keys = LIST_KEYS.get(inner.__name__)
    if not keys:
        return {"x-kubernetes-list-type": "atomic"}
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def _default(field: FieldInfo) -> Any:
    """The default as the API server fills it in; None for none."""
    # It runs an object's own rules on its default before it fills in what is below. So the default
    # of an object with rules is written out; that of one without is empty, and is filled in.
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or value is None or value in ((), {}):
        return None
    if isinstance(value, Model):
        return _written(value) if type(value).cel else {}
    return str(value) if isinstance(value, Duration | Quantity) else value


def _written(model: Model) -> Schema:
    pairs = (
        (field.alias or name, _value(field)) for name, field in type(model).model_fields.items()
    )
    return {name: value for name, value in pairs if value is not None}


def _value(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Model):
        return _written(value) or None
    return _default(field)


def _described(node: Schema, text: str | None) -> Schema:
    shown = " ".join((text or "").split())
    return {"description": shown, **{k: v for k, v in node.items() if k != "description"}}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in _models(annotation)), None)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    for argument in get_args(annotation):
        model = _model_in(argument)
        if model is not None:
            yield model


def _is_list(annotation: Any) -> bool:
    origins = [get_origin(annotation), *(get_origin(part) for part in get_args(annotation))]
    return tuple in origins or list in origins


GROUP, STORED = API_VERSION.split("/")
VERSIONS = tuple(version.rpartition("/")[2] for version in get_args(ApiVersion))
JOB_CRD_NAME = f"statefulsparkjobs.{GROUP}"
SNAPSHOT_CRD_NAME = f"statefulsparksnapshots.{GROUP}"

_Column = dict[str, Any]


def job_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of StatefulSparkJob."""
    spec = spec_schema(JobSpec)
    spec["required"] = ["image", *spec["required"]]
    name = {"type": "string", "maxLength": JOB_NAME_LENGTH, "pattern": JOB_NAME_PATTERN}
    return _definition(
        KIND,
        ("ssj",),
        "A streaming Spark job with state.",
        _schema(name, spec, status_schema(JobStatus)),
        _job_columns(),
        subresources={
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.scaling.parallelism",
                "statusReplicasPath": ".status.scaling.observedParallelism",
                "labelSelectorPath": ".status.scaling.selector",
            },
        },
        selectable=(".spec.desiredState", ".status.phase"),
    )


def snapshot_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of StatefulSparkSnapshot."""
    # Its name may become a directory's and a label's.
    name = {"type": "string", "maxLength": 63}
    return _definition(
        SNAPSHOT_KIND,
        ("ssnap",),
        "A savepoint or kept checkpoint of a StatefulSparkJob.",
        _schema(name, spec_schema(SnapshotSpec), status_schema(SnapshotStatus)),
        _snapshot_columns(),
        subresources={"status": {}},
        selectable=(".spec.jobRef.name", ".status.state"),
    )


def _schema(name: Schema, spec: Schema, status: Schema) -> Schema:
    """The whole object."""
    # The name's form is part of the schema and no rule at the root: rules there are judged at every
    # write, of finalizers too, and also for objects that are older than the rule.
    return {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": spec,
            "status": status,
        },
    }


def _definition(
    kind: str,
    short: tuple[str, ...],
    description: str,
    schema: Schema,
    columns: list[_Column],
    *,
    subresources: dict[str, Any],
    selectable: tuple[str, ...],
) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.lower()}s.{GROUP}",
            "labels": {"app.kubernetes.io/name": "moorage"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": _names(kind, short),
            # All are of one schema, so that no conversion is needed, and none can be down.
            "conversion": {"strategy": "None"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == STORED,
                    "subresources": subresources,
                    "selectableFields": [{"jsonPath": path} for path in selectable],
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": {"description": description, **schema}},
                }
                for version in VERSIONS
            ],
        },
    }


def _names(kind: str, short: tuple[str, ...]) -> dict[str, Any]:
    return {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": f"{kind.lower()}s",
        "singular": kind.lower(),
        "shortNames": list(short),
        # Not in `all`: `kubectl delete all --all` is for what can be made anew.
        "categories": ["moorage"],
    }


def _job_columns() -> list[_Column]:
    ready = '.status.conditions[?(@.type=="Ready")].status'
    return [
        _column("Phase", ".status.phase"),
        _column("Desired", ".spec.desiredState"),
        _column("Par", ".status.scaling.observedParallelism", "integer"),
        _column("Exec", ".status.executors.ready", "integer"),
        _column("LastCkpt", ".status.snapshots.lastCheckpoint.completedAt", "date"),
        _column("Restarts", ".status.restarts.total", "integer"),
        _column("Ready", ready),
        _column("Age", ".metadata.creationTimestamp", "date"),
        _column("Epoch", ".status.job.epoch", "integer", wide=True),
        _column("RestoredFrom", ".status.attempt.restoredFrom.path", wide=True),
        _column("Backend", ".status.reconciliation.stateBackend", wide=True),
        _column("Operator", ".status.operator.lease", wide=True),
        _column("Image", ".spec.image", wide=True),
        _column("Message", ".status.message", wide=True),
    ]


def _snapshot_columns() -> list[_Column]:
    return [
        _column("Job", ".spec.jobRef.name"),
        _column("Type", ".spec.type"),
        _column("Trigger", ".metadata.labels.moorage\\.dev/trigger"),
        _column("State", ".status.state"),
        _column("Ckpt", ".status.checkpointId", "integer"),
        _column("Size", ".status.sizeBytes", "integer"),
        _column("Completed", ".status.completedAt", "date"),
        _column("Age", ".metadata.creationTimestamp", "date"),
        _column("Path", ".status.path", wide=True),
        _column("Message", ".status.message", wide=True),
    ]


def _column(name: str, path: str, kind: str = "string", *, wide: bool = False) -> _Column:
    column: _Column = {"name": name, "type": kind, "jsonPath": path}
    return {**column, "priority": 1} if wide else column
