"""Reads what was accepted once, whatever rules have come since.

A rule that a release adds is for what people write from then on. What was stored before it runs
perhaps, and whoever runs it has to know what it is: here every field has its type, and no rule
counts, neither of one field (patterns, bounds) nor of several. The operator reads the specs in
ControllerRevisions by this, and those of snapshots that exist. Knows no status and no cluster.
"""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from moorage_api.model import Model
from moorage_api.quantities import Duration, Quantity

_M = TypeVar("_M", bound=Model)


def read_stored(model: type[_M], data: Any) -> _M:
    """Return the model that `data` was written from, with defaults for what it leaves out.

    Fields that no model has are passed over: an operator of a later release may have written them.

    Raises:
        ValueError: it lacks what there is no default for, or a value is not of its field's type.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"no {model.__name__}")  # noqa: TRY004 - as for every wrong value
    values = {}
    for name, field in model.model_fields.items():
        given = data.get(field.alias or name)
        if given is not None:
            values[name] = _read(field.annotation, given)
        elif field.is_required():
            raise ValueError(f"no {name} in {model.__name__}")
    return model.model_construct(**values)


def _read(kind: Any, value: Any) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Annotated, Union, UnionType):  # of a type and None
        return _read(next(one for one in args if one is not NoneType), value)
    if isinstance(kind, type) and issubclass(kind, Model):
        return read_stored(kind, value)
    if isinstance(kind, type) and issubclass(kind, Duration | Quantity):
        return kind.parse(value)
    if origin is tuple and isinstance(value, list):
        return tuple(_read(args[0], one) for one in value)
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {_read(args[0], key): _read(args[1], one) for key, one in value.items()}
    # JSON has no other 2.0 than 2.
    kinds = (float, int) if kind is float else (kind,)
    right = value in args if origin is Literal else kind is Any or type(value) in kinds
    if not right:
        raise ValueError(f"no {kind}")
    return value
