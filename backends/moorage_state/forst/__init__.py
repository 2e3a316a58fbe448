"""State whose SST files lie in the object store: the local volume is a bounded cache of them.

`files` decides which files are here, `database` reads and compacts a database some of whose files
are not. Called by the factory `state_backends.forst`. RocksDB itself stays behind `rocks`.
"""

from moorage_state.forst.database import ForStDatabase as ForStDatabase
from moorage_state.forst.files import CacheLimits as CacheLimits
from moorage_state.forst.files import FileCache as FileCache
from moorage_state.forst.files import detach as detach
