"""Object stores: where a lineage's log, manifests and state files live.

Decides how bytes get durable under a key, and what a failure of the storage means. Called by
`moorage_state.snapshots` and by the uploads and restores of the state server. Must not know what
the bytes are, nor any state backend, Spark or Kubernetes.
"""

from moorage_state.stores.addresses import open_store, store_url
from moorage_state.stores.base import (
    ObjectInfo,
    ObjectStore,
    check_key,
    delete_all,
    not_deleted,
)
from moorage_state.stores.local import LocalStore
from moorage_state.stores.memory import MemoryStore
from moorage_state.stores.retries import Retries
from moorage_state.stores.s3 import S3Address, S3Credentials, S3Store
from moorage_state.stores.transfers import in_parallel

__all__ = [
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectStore",
    "Retries",
    "S3Address",
    "S3Credentials",
    "S3Store",
    "check_key",
    "delete_all",
    "in_parallel",
    "not_deleted",
    "open_store",
    "store_url",
]
