"""What a job asked of its state backend, before it is known on which machine that will run.

Decides how a server's memory is divided, and what a profile stands for. Pure.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moorage_state.errors import IllegalConfigurationError, UserError
from moorage_state.tuning.rocks import RocksOptions

DEFAULTS_VARIABLE = "MOORAGE_STATE_OPTIONS"
"""A JSON object of texts, by the same names as in `spec.state.options`."""

_MIB = 1 << 20
_OWN_CACHE = 8 * _MIB
_LEAST_BUFFER = 64 * 1024
_DISK: dict[str, Any] = {
    "compaction": "level",
    "level_dynamic_size": True,
    "background_jobs": 4,
    "max_open_files": -1,
}
_PROFILES: dict[str, dict[str, Any]] = {
    "DEFAULT": {},
    "SPINNING_DISK_OPTIMIZED": _DISK,
    "SPINNING_DISK_OPTIMIZED_HIGH_MEM": {
        **_DISK,
        "target_file_bytes": 256 * _MIB,
        "level_base_bytes": 1024 * _MIB,
        "write_buffer_bytes": 64 * _MIB,
        "write_buffers_bytes": 256 * _MIB,
        "max_write_buffers": 4,
        "block_cache_bytes": 256 * _MIB,
        "block_bytes": 128 * 1024,
        "bloom_bits_per_key": 10,
    },
    "FLASH_SSD_OPTIMIZED": {"background_jobs": 4, "max_open_files": -1},
}


def default_options(environ: Mapping[str, str]) -> dict[str, str]:
    """What the variable says, nothing if it is not set; or IllegalConfigurationError."""
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


@dataclass(frozen=True, slots=True)
class ChangelogOptions:
    """How a job's changelog is kept.

    Attributes:
        materializes: whether ranges are copied whole now and then; else only deltas are added.
        interval_seconds: between two such copies.
        max_failures: of copies in a row, before the run fails.
        persists_at: bytes of a server's deltas that go to the store before a checkpoint asks for
            them.
    """

    materializes: bool
    interval_seconds: float
    max_failures: int
    persists_at: int = 5 * _MIB


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """What was asked for; made by `parse_options`. 0, None or empty where nothing was said.

    Attributes:
        rocks: fields of `RocksOptions`, as far as they were named one by one.
        profile: what holds where they were not.
        per_slot: bytes of cache and write buffers of one state server.
        per_host: the same for all servers of one machine or executor.
        write_ratio: the share of these that is for write buffers.
        bloom: whether there are filters at all; `bloom_bits` is their size for each key.
        local_dir: where working state lies.
        heap_limit: bytes of state in memory of one state server.
        storage: where checkpoints go, "driver" or "filesystem".
        max_state_size: what the driver keeps of one subtask's.
        changelog: whether there is one; the others are fields of `ChangelogOptions`.
        forst_limit: bytes of files that `forst` keeps on the volume of one machine, 0 for any.
        forst_reserve: bytes of the volume that it leaves free.
        forst_accesses: batches that must have read a file before it counts as often used.
        forst_promotions: how often a file may lose that again.
    """

    rocks: Mapping[str, Any] = field(default_factory=dict)
    profile: str = "DEFAULT"
    per_slot: int = 0
    per_host: int = 0
    write_ratio: float = 0.5
    bloom: bool | None = None
    bloom_bits: int = 10
    local_dir: str = ""
    heap_limit: int = 0
    storage: str = ""
    max_state_size: int = 0
    changelog: bool = False
    changelog_materializes: bool = True
    changelog_interval: float = 600.0
    changelog_failures: int = 3
    changelog_persists_at: int = 5 * _MIB
    forst_limit: int = 0
    forst_reserve: int = 256 * _MIB
    forst_accesses: int = 6
    forst_promotions: int = 3

    def rocks_options(self, servers: int = 1, memory: int | None = None) -> RocksOptions:
        """RocksDB's options of each of `servers` servers on one machine. Raises UserError.

        `memory` is what all of them together may have, unless the job says otherwise.
        """
        fields = {**self._below(servers, memory), **self.rocks, **self._bloom()}
        usual = RocksOptions()
        # One full buffer must fit in, however little there is for all of them.
        buffers = fields.get("write_buffers_bytes", usual.write_buffers_bytes)
        buffer = fields.get("write_buffer_bytes", usual.write_buffer_bytes)
        return RocksOptions(**{**fields, "write_buffers_bytes": max(buffers, buffer)})

    def check(self, given: Mapping[str, str]) -> None:
        """Refuse what does not go together, naming the keys as they were `given`."""
        try:
            self.rocks_options()
        except UserError as error:
            raise IllegalConfigurationError(
                f"state options do not go together: {error}; options="
                f"{' '.join(f'{key}={value}' for key, value in given.items())[:500]}"
            ) from error

    def _below(self, servers: int, memory: int | None) -> dict[str, Any]:
        """What holds where nothing was named: the profile, and how memory is divided."""
        profile = dict(_PROFILES[self.profile])
        if not self.rocks.get("shared_memory", True):
            # Each database has one: not the size that is meant for all of them.
            return {**profile, "block_cache_bytes": _OWN_CACHE}
        total = self.per_slot or (self.per_host or memory or 0) // servers
        return {**profile, **self._divided(total, profile)} if total else profile

    def _divided(self, total: int, profile: Mapping[str, Any]) -> dict[str, int]:
        """Flink's way: write buffers count to the cache, and may go half beyond their share."""
        total = max(total, 8 * _MIB)
        buffers = int(2 * total * self.write_ratio / 3)
        usual = profile.get("write_buffer_bytes", RocksOptions().write_buffer_bytes)
        return {
            "block_cache_bytes": int((3 - self.write_ratio) * total / 3),
            "write_buffers_bytes": buffers,
            "write_buffer_bytes": max(_LEAST_BUFFER, min(usual, buffers // 4)),
        }

    def _bloom(self) -> dict[str, int]:
        if self.bloom is None and self.bloom_bits == 10:
            return {}
        return {"bloom_bits_per_key": 0 if self.bloom is False else self.bloom_bits}
