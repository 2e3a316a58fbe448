"""Writes docs/manifest.md, the reference of every field of a manifest, from the models.

`python scripts/manifest_reference.py` writes it; `--check` says whether it is up to date.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from moorage_api import Duration, Quantity, StatefulSparkJob
from moorage_api.model import Model

TARGET = Path(__file__).parent.parent / "docs" / "manifest.md"

HEAD = """\
# The manifest, field by field

Made from the models by `make format`; do not edit. A `StatefulSparkJob` is refused as a whole if a
field is unknown, of the wrong type or out of its range. Durations are written as Go writes them
(`250ms`, `60s`, `1h30m`), quantities as Kubernetes does (`500m`, `2Gi`). A field that is *required
in it* has to be there where its parent is.

| field | type | default | meaning |
|---|---|---|---|
"""

# The API server's part of an object; nobody writes it by hand.
HIDDEN = "Filled in by"


def rows(model: type[Model], above: str = "", *, optional: bool = False) -> Iterator[str]:
    """Yield one table row for each field below `model`, which a manifest may be without."""
    for name, field in model.model_fields.items():
        path = f"{above}{field.alias or name}"
        if (field.description or "").startswith(HIDDEN):
            continue
        inner = inner_model(field.annotation)
        if inner is None:
            meaning = " ".join((field.description or "").split()).replace("|", "\\|")
            value = default(field)
            value = "required in it" if optional and value == "required" else value
            yield f"| `{path}` | {kind(field.annotation)} | {value} | {meaning} |"
        else:
            many = get_origin(field.annotation) is tuple
            missing = optional or not field.is_required()
            yield from rows(inner, f"{path}[]." if many else f"{path}.", optional=missing)


def inner_model(annotation: Any) -> type[Model] | None:
    """Return the model inside an annotation, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    found = (inner_model(argument) for argument in get_args(annotation))
    return next((model for model in found if model), None)


def kind(annotation: Any) -> str:
    """Return what a person writes for a value of this type."""
    names = {
        str: "text",
        int: "integer",
        bool: "boolean",
        Duration: "duration",
        Quantity: "quantity",
    }
    if annotation in names:
        return names[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{argument}`" for argument in arguments)
    if origin in (Union, UnionType):
        return " or ".join(kind(argument) for argument in arguments if argument is not NoneType)
    if origin is tuple:
        return f"list of {kind(arguments[0])}"
    if origin is not None and hasattr(origin, "keys"):
        return "mapping"
    metadata = getattr(annotation, "__origin__", None)
    return kind(metadata) if metadata is not None else "any"


def default(field: FieldInfo) -> str:
    """Return the default as it would be written, "required" or nothing."""
    if field.default is PydanticUndefined:
        return "" if field.default_factory else "required"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return "" if field.default in (None, "", ()) else f"`{field.default}`"


def main() -> int:
    """Write the page, or with `--check` compare; returns the exit status."""
    text = HEAD + "\n".join(rows(StatefulSparkJob)) + "\n"
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
        return 0
    if TARGET.exists() and TARGET.read_text() == text:
        return 0
    print(f"{TARGET.name} does not match the models; run: make format", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
