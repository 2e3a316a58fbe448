"""Annotations that look like an order and are none: a slip must not pass in silence. Pure.

The API server takes any annotation. One that the operator does not know, or a switch that is
neither on nor off, does nothing; who wrote it believes that it does.
"""

from moorage_operator.decide.draft import Draft

__all__ = ["tell_slips"]

_DOMAIN = "moorage.dev/"
_ORDERS = ("savepoint", "checkpoint", "restart", "adopt-lineage")
_SWITCHES = ("paused", "skip-final-savepoint")


def tell_slips(draft: Draft) -> None:
    """Tell once of each annotation that is passed over."""
    for name in sorted(draft.meta.annotations):
        short = name.removeprefix(_DOMAIN)
        if short == name or short in _ORDERS:
            continue
        value = draft.meta.annotation(short)
        if short not in _SWITCHES:
            known = ", ".join((*_ORDERS, *_SWITCHES))
            text = f"the annotation {name} is not known and does nothing; known are {known}"
        elif value not in ("", "true", "false"):
            text = f"the annotation {name} is {value!r} and does nothing; write true or false"
        else:
            continue
        draft.tell("Warning", "AnnotationIgnored", text, f"{draft.meta.uid}-{name}-{value}")
