"""Object stores: where a lineage's log, manifests and state files live.

Decides how bytes get durable under a key, and what a failure of the storage means. Called by
`moorage_state.snapshots` and by the uploads and restores of the state server. Must not know what
the bytes are, nor any state backend, Spark or Kubernetes.
"""

from moorage_state.stores.addresses import open_store as open_store
from moorage_state.stores.addresses import store_url as store_url
from moorage_state.stores.base import NoSuchBucket as NoSuchBucket
from moorage_state.stores.base import ObjectInfo as ObjectInfo
from moorage_state.stores.base import ObjectStore as ObjectStore
from moorage_state.stores.base import check_key as check_key
from moorage_state.stores.base import delete_all as delete_all
from moorage_state.stores.base import not_deleted as not_deleted
from moorage_state.stores.base import put_once as put_once
from moorage_state.stores.local import LocalStore as LocalStore
from moorage_state.stores.memory import MemoryStore as MemoryStore
from moorage_state.stores.retries import Retries as Retries
from moorage_state.stores.s3 import S3Address as S3Address
from moorage_state.stores.s3 import S3Credentials as S3Credentials
from moorage_state.stores.s3 import S3Store as S3Store
from moorage_state.stores.transfers import in_parallel as in_parallel
