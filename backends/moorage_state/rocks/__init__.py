"""RocksDB: the only package that imports rocksdict.

Decides how a database is opened, read, written and linked, and turns the binding's untyped errors
into Moorage's. Called by the state server. Must not know what keys mean, beyond its own metadata.
"""

from moorage_state.rocks.adapter import Cursor as Cursor
from moorage_state.rocks.adapter import Database as Database
from moorage_state.rocks.options import ProcessMemory as ProcessMemory
from moorage_state.tuning import RocksOptions as RocksOptions
