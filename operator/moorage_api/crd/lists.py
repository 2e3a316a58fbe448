"""Which lists of objects are maps by a key, so that several writers may share them."""

__all__ = ["LIST_KEYS"]

LIST_KEYS: dict[str, tuple[str, ...]] = {"Condition": ("type",), "EnvVar": ("name",)}
"""Model of the items to their keys; the API server refuses two items of one key."""
