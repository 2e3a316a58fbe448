"""Moorage's state layer: stores, snapshots, and the databases of key-group ranges.

The subpackages are imported by name. `errors`, `stores` and `snapshots` import neither RocksDB nor
Arrow, so that the operator and the command line can read a lineage without either.
"""
