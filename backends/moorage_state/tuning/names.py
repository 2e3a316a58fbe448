"""The table of names: which settings there are, what they must be, and what each one changes.

Called wherever settings come in: a manifest's `spec.state.options`, defaults of a cluster, flags of
a state server. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from moorage_state.errors import IllegalConfigurationError
from moorage_state.tuning import value_kinds
from moorage_state.tuning.resolved import BackendOptions, ChangelogOptions

ROCKSDB = "state.backend.rocksdb."
FORST = "state.backend.forst."
_HASHMAP = "state.backend.hashmap."
HEAP_LIMIT = "state.backend.hashmap.memory-limit"
CHECKPOINT_STORAGE_KEY = "state.checkpoint-storage"
MAX_STATE_SIZE_KEY = "state.checkpoint-storage.driver.max-state-size"
_CHANGELOG = "state.changelog."
CHANGELOG_KEY = "state.changelog.enabled"
_KIB, _GIB = 1 << 10, 1 << 30

_size = value_kinds.size(_KIB)
_PROFILES = {
    name: name
    for name in (
        "DEFAULT",
        "SPINNING_DISK_OPTIMIZED",
        "SPINNING_DISK_OPTIMIZED_HIGH_MEM",
        "FLASH_SSD_OPTIMIZED",
    )
}
_BINDING = "python's binding of RocksDB cannot set it; leave it out"
_AS_CHECKPOINTS = "deltas go to the store as files of checkpoints do; leave it out"
_ONE_WAY = "restore has one way, which needs no such setting; leave it out"
ABSENT_KEYS: dict[str, str] = {
    "state.backend": "is spec.state.backend; write it there",
    "state.backend.type": "is spec.state.backend; write it there",
    "state.backend.incremental": "is spec.checkpoint.incremental; write it there",
    "state.checkpoints.dir": "is spec.state.checkpointDir; write it there",
    "state.savepoints.dir": "is spec.state.savepointDir; write it there",
    "state.changelog.storage": "has one value, checkpointDir; leave it out",
    "state.changelog.dstl.dfs.base-path": "is spec.state.checkpointDir; write it there",
    **dict.fromkeys(
        (
            "state.changelog.dstl.dfs.batch.persist-delay",
            "state.changelog.dstl.dfs.batch.persist-size-threshold",
            "state.changelog.dstl.dfs.compression.enabled",
            "state.changelog.dstl.dfs.discard.num-threads",
            "state.changelog.dstl.dfs.download.local-cache.idle-timeout-ms",
            "state.changelog.dstl.dfs.upload.buffer-size",
            "state.changelog.dstl.dfs.upload.max-attempts",
            "state.changelog.dstl.dfs.upload.max-in-flight",
            "state.changelog.dstl.dfs.upload.next-delay-after-failure",
            "state.changelog.dstl.dfs.upload.num-threads",
            "state.changelog.dstl.dfs.upload.retry-policy",
            "state.changelog.dstl.dfs.upload.timeout",
        ),
        _AS_CHECKPOINTS,
    ),
    "state.backend.rocksdb.options-factory": (
        "names code for the JVM; use the other settings of state.backend.rocksdb"
    ),
    "state.backend.rocksdb.writebuffer.number-to-merge": (
        "RocksDB takes 1 for it where there is no write-ahead log; leave it out"
    ),
    "state.backend.rocksdb.bloom-filter.block-based-mode": (
        "RocksDB has had no such filters for long; leave it out"
    ),
    "state.backend.rocksdb.memory.high-prio-pool-ratio": _BINDING,
    "state.backend.rocksdb.log.level": _BINDING,
    "state.backend.rocksdb.compaction.filter.query-time-after-num-entries": _BINDING,
    "state.backend.rocksdb.compaction.filter.periodic-compaction-time": _BINDING,
    "state.backend.rocksdb.write-batch-size": (
        "an epoch is one batch, so that all of it counts or nothing; leave it out"
    ),
    "state.backend.rocksdb.checkpoint.transfer.thread.num": (
        "uploads take four threads for all ranges of a server; leave it out"
    ),
    "state.backend.rocksdb.timer-service.cache-size": (
        "timers are read by pages of the block cache; leave it out"
    ),
    "state.backend.forst.primary-dir": "is spec.state.checkpointDir; write it there",
    "state.backend.forst.cache.dir": "is spec.state.local; write it there",
    "state.backend.forst.local-dir": "is spec.state.local; write it there",
    "state.backend.forst.sync.enforce-local": "files are written here first; leave it out",
    "state.backend.rocksdb.restore-overlap-fraction-threshold": _ONE_WAY,
    "state.backend.rocksdb.use-ingest-db-restore-mode": _ONE_WAY,
    "state.backend.rocksdb.incremental-restore-async-compact-after-rescale": _ONE_WAY,
    "state.backend.rocksdb.rescaling.use-delete-files-in-range": _ONE_WAY,
}
"""Flink's keys that have no place here, and why."""


@dataclass(frozen=True, slots=True)
class _Setting:
    """What a text becomes, and its field: of `BackendOptions`, or (`rocks.`) `RocksOptions`."""

    field: str
    parse: Callable[[str], Any]


_TABLE: dict[str, _Setting] = {
    "state.backend.rocksdb.localdir": _Setting("local_dir", value_kinds.directory),
    "state.backend.rocksdb.timer-service.factory": _Setting(
        "rocks.heap_timers", value_kinds.choice(ROCKSDB=False, HEAP=True)
    ),
    "state.backend.rocksdb.predefined-options": _Setting(
        "profile", value_kinds.choice(**_PROFILES)
    ),
    "state.backend.rocksdb.memory.managed": _Setting("rocks.shared_memory", value_kinds.boolean),
    "state.backend.rocksdb.memory.fixed-per-slot": _Setting("per_slot", value_kinds.size(8 << 20)),
    "state.backend.rocksdb.memory.fixed-per-tm": _Setting("per_host", value_kinds.size(8 << 20)),
    "state.backend.rocksdb.memory.write-buffer-ratio": _Setting("write_ratio", value_kinds.ratio),
    "state.backend.rocksdb.memory.partitioned-index-filters": _Setting(
        "rocks.partitioned_index_filters", value_kinds.boolean
    ),
    "state.backend.rocksdb.block.cache-size": _Setting(
        "rocks.block_cache_bytes", value_kinds.size(0)
    ),
    "state.backend.rocksdb.block.blocksize": _Setting("rocks.block_bytes", _size),
    "state.backend.rocksdb.block.metadata-blocksize": _Setting("rocks.metadata_block_bytes", _size),
    "state.backend.rocksdb.writebuffer.size": _Setting("rocks.write_buffer_bytes", _size),
    "state.backend.rocksdb.writebuffer.count": _Setting(
        "rocks.max_write_buffers", value_kinds.whole(2, 64)
    ),
    "state.backend.rocksdb.compaction.style": _Setting(
        "rocks.compaction", value_kinds.choice(LEVEL="level", UNIVERSAL="universal", NONE="none")
    ),
    "state.backend.rocksdb.compaction.level.use-dynamic-size": _Setting(
        "rocks.level_dynamic_size", value_kinds.boolean
    ),
    "state.backend.rocksdb.compaction.level.target-file-size-base": _Setting(
        "rocks.target_file_bytes", _size
    ),
    "state.backend.rocksdb.compaction.level.max-size-level-base": _Setting(
        "rocks.level_base_bytes", _size
    ),
    "state.backend.rocksdb.compression.per.level": _Setting(
        "rocks.compression_per_level", value_kinds.compressions
    ),
    "state.backend.rocksdb.use-bloom-filter": _Setting("bloom", value_kinds.boolean),
    "state.backend.rocksdb.bloom-filter.bits-per-key": _Setting(
        "bloom_bits", value_kinds.whole(1, 100)
    ),
    "state.backend.rocksdb.files.open": _Setting(
        "rocks.max_open_files", value_kinds.whole(-1, 1_000_000)
    ),
    "state.backend.rocksdb.thread.num": _Setting("rocks.background_jobs", value_kinds.whole(1, 64)),
    "state.backend.rocksdb.log.max-file-size": _Setting("rocks.log_bytes", _size),
    "state.backend.rocksdb.log.file-num": _Setting("rocks.log_files", value_kinds.whole(1, 1000)),
    "state.backend.rocksdb.log.dir": _Setting("rocks.log_dir", value_kinds.directory),
    HEAP_LIMIT: _Setting("heap_limit", value_kinds.size(1 << 20)),
    "state.backend.forst.cache.size-based-limit": _Setting("forst_limit", value_kinds.size(0)),
    "state.backend.forst.cache.reserve-size": _Setting("forst_reserve", value_kinds.size(0)),
    "state.backend.forst.cache.lru.access-before-promote": _Setting(
        "forst_accesses", value_kinds.whole(1, 1_000_000)
    ),
    "state.backend.forst.cache.lru.promote-limit": _Setting(
        "forst_promotions", value_kinds.whole(0, 1_000_000)
    ),
    CHECKPOINT_STORAGE_KEY: _Setting("storage", value_kinds.storage),
    MAX_STATE_SIZE_KEY: _Setting("max_state_size", value_kinds.size(1)),
    CHANGELOG_KEY: _Setting("changelog", value_kinds.boolean),
    "state.changelog.periodic-materialize.enabled": _Setting(
        "changelog_materializes", value_kinds.boolean
    ),
    "state.changelog.periodic-materialize.interval": _Setting(
        "changelog_interval", value_kinds.duration
    ),
    "state.changelog.max-failures-allowed": _Setting(
        "changelog_failures", value_kinds.whole(0, 1_000_000)
    ),
    "state.changelog.dstl.dfs.preemptive-persist-threshold": _Setting(
        "changelog_persists_at", value_kinds.size(1)
    ),
}

# Its databases are RocksDB's. How they are compacted is its own, and nothing is told of it.
_SHARED = (
    *("memory.fixed-per-slot", "memory.fixed-per-tm", "memory.write-buffer-ratio"),
    *("block.blocksize", "writebuffer.size", "writebuffer.count"),
    *("compaction.level.target-file-size-base", "thread.num"),
)
_TABLE.update(
    (FORST + name, _Setting(f"forst.{name}", _TABLE[ROCKSDB + name].parse)) for name in _SHARED
)

KNOWN_KEYS = tuple(_TABLE)
"""All keys that can be set."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A setting that cannot be taken; `key` is empty where several do not go together."""

    key: str
    problem: str
    fix: str
    value: str = ""
    why: str = ""

    @property
    def reason(self) -> str:
        """What is wrong, for those who see the key beside it."""
        parts = [self.problem, repr(self.value[:80]) if self.key else "", self.why]
        return ": ".join(filter(None, parts))

    def error(self) -> IllegalConfigurationError:
        """The error that says it all."""
        named = f"key={self.key[:120]} value={self.value[:80]!r}" if self.key else ""
        what = f"state option {self.problem}" if self.key else self.problem
        return IllegalConfigurationError(
            f"{': '.join(filter(None, [what, named, self.why]))}; {self.fix}"
        )


def parse_options(
    options: Mapping[str, str], defaults: Mapping[str, str] | None = None
) -> BackendOptions:
    """What a job's settings mean, over the cluster's `defaults`; or IllegalConfigurationError."""
    judged = judge_options(options, defaults)
    if isinstance(judged, BackendOptions):
        return judged
    raise judged[0].error()


def changelog_options(
    options: Mapping[str, str], defaults: Mapping[str, str] | None = None, *, asked: bool = False
) -> ChangelogOptions | None:
    """What a job's settings say of its changelog; None where it has none.

    Args:
        asked: the manifest's own field is true.

    Raises IllegalConfigurationError: a setting has a value that it cannot have.
    """
    given = {**(defaults or {}), **options}
    found = parse_options({key: text for key, text in given.items() if key.startswith(_CHANGELOG)})
    if not (asked or found.changelog):
        return None
    return ChangelogOptions(
        found.changelog_materializes,
        found.changelog_interval,
        found.changelog_failures,
        found.changelog_persists_at,
    )


def judge_options(
    options: Mapping[str, str],
    defaults: Mapping[str, str] | None = None,
    own: str = "",
) -> BackendOptions | list[Refusal]:
    """What `parse_options` gives, or everything that is wrong with the settings.

    `own` is what the keys begin with that a backend which is none of these judges itself.
    """
    found: dict[str, Any] = {}
    rocks: dict[str, Any] = {}
    refused: list[Refusal] = []
    # Also those of a backend that is not used: judged like all others, they change nothing.
    given = {**(defaults or {}), **options}
    for key, text in given.items():
        setting = _TABLE.get(key)
        if setting is None and own and key.startswith(own) and not _is_ours(key):
            continue
        if setting is None:
            refused.append(_unknown(key, text))
            continue
        try:
            value = setting.parse(text)
        except value_kinds.Refused as refusal:
            refused.append(Refusal(key, "has a wrong value", f"write {refusal}", text))
            continue
        group, _, name = setting.field.partition(".")
        if group == "forst":
            continue  # RocksDB's by another name; its backend reads the text
        (rocks if name else found)[name or group] = value
    resolved = BackendOptions(rocks=rocks, **found)
    if refused:
        return refused
    try:
        resolved.check(given)
    except IllegalConfigurationError as error:
        text, _, shown = str(error).rpartition("; options=")
        reason, separator, fix = text.rpartition("; ")
        if not separator:
            reason, fix = text, "change one of them, or leave it out"
        return [Refusal("", f"{reason} options={shown}", fix)]
    return resolved


def _is_ours(key: str) -> bool:
    return key in ABSENT_KEYS or key.startswith((ROCKSDB, _HASHMAP, FORST, _CHANGELOG))


def _unknown(key: str, text: str) -> Refusal:
    if key in ABSENT_KEYS:
        why, _, fix = ABSENT_KEYS[key].rpartition("; ")
        return Refusal(key, "cannot be set", fix, text, why)
    near = get_close_matches(key, KNOWN_KEYS, n=3, cutoff=0.6)
    fix = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(KNOWN_KEYS)}"
    return Refusal(key, "is not known", fix, text)
