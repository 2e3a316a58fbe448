"""JSON as the API server writes it itself.

The data of a ControllerRevision are kept byte for byte as they were sent, and compared with what
the server makes of them; so nothing may be sent that it would write differently.
"""

import json
from typing import Any

__all__ = ["encoded"]

_ESCAPES = str.maketrans(
    {
        "<": "\\u003c",
        ">": "\\u003e",
        "&": "\\u0026",
        "\u2028": "\\u2028",
        "\u2029": "\\u2029",
    }
)


def encoded(body: Any) -> bytes:
    """Compact, keys in order, `<`, `>`, `&` and line separators escaped, other text as it is."""
    text = json.dumps(body, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return text.translate(_ESCAPES).encode()
