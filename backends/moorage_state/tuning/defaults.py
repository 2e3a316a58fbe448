"""Defaults for every job of a machine or of an image, from the environment."""

import json
from collections.abc import Mapping

from moorage_state.errors import IllegalConfigurationError

__all__ = ["DEFAULTS_VARIABLE", "default_options"]

DEFAULTS_VARIABLE = "MOORAGE_STATE_OPTIONS"
"""A JSON object of texts, by the same names as in `spec.state.options`."""


def default_options(environ: Mapping[str, str]) -> dict[str, str]:
    """What the variable says, nothing if it is not set.

    Raises:
        IllegalConfigurationError: it is not a JSON object of texts.
    """
    text = environ.get(DEFAULTS_VARIABLE, "")
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _not_defaults(text) from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise _not_defaults(text)
    return found


def _not_defaults(text: str) -> IllegalConfigurationError:
    return IllegalConfigurationError(
        f"defaults of state options cannot be read: variable={DEFAULTS_VARIABLE} "
        f'value={text[:80]!r}; write a JSON object like {{"state.backend.rocksdb.thread.num": "4"}}'
    )
