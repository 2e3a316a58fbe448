"""Settings by the names that people know, read with their types.

Decides which spellings a setting has, what its values are, and what is said of a wrong one. Called
by the registry and by backends. Knows no file: a configuration is a mapping of text.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from moorage_state.coordinator import CheckpointConfig, CheckpointingMode, CheckpointRetentionPolicy
from moorage_state.errors import IllegalConfigurationError, UserError
from moorage_state.state_backends.storage import (
    DEFAULT_INLINE_BYTES,
    DEFAULT_MAX_STATE_BYTES,
)
from moorage_state.tuning import CHECKPOINT_STORAGE_KEY, MAX_STATE_SIZE_KEY, value_kinds

T = TypeVar("T")

_TIME = re.compile(r"(\d+)\s*(ms|s|sec|min|m|h|d)?\Z", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("text that is not empty")
    return value.strip()


def _seconds(value: str) -> float:
    """A bare number is milliseconds, as in Flink."""
    match = _TIME.match(value.strip())
    if match is None:
        raise ValueError("a duration such as 30s, 10 min or 30000 (milliseconds)")
    return int(match[1]) * _SECONDS[(match[2] or "ms").lower()]


def _count(value: str) -> int:
    if not value.strip().isdecimal():
        raise ValueError("a whole number, 0 or more")
    return int(value)


@dataclass(frozen=True, slots=True)
class ConfigOption(Generic[T]):
    """A setting.

    Attributes:
        key: the name that messages use.
        parse: from text; raises `ValueError` with what is allowed.
        default: what holds where nothing is configured.
        fallback_keys: older names, read in this order where `key` is not there.
    """

    key: str
    parse: Callable[[str], T]
    default: T
    fallback_keys: tuple[str, ...] = ()


class Configuration(Mapping[str, str]):
    """Settings as text; a value in it may be given as number or boolean too. Immutable."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = {str(key): _as_text(key, value) for key, value in (values or {}).items()}

    def __getitem__(self, key: str) -> str:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Configuration({self._values!r})"

    def get_option(self, option: ConfigOption[T]) -> T:
        """The value of a setting, or its default.

        Raises:
            IllegalConfigurationError: it is not a value of this setting.
        """
        found = self.find(option)
        if found is None:
            return option.default
        key, text = found
        try:
            return option.parse(text)
        except ValueError as error:
            raise IllegalConfigurationError(
                f"setting has a value that it cannot have: key={key} value={text!r}; give {error}"
            ) from None

    def find(self, option: ConfigOption[Any]) -> tuple[str, str] | None:
        """Under which of its names a setting is configured, and as what; None if it is not."""
        for key in (option.key, *option.fallback_keys):
            if key in self._values:
                return key, self._values[key]
        return None

    def over(self, defaults: Mapping[str, Any]) -> "Configuration":
        """These settings, and those of `defaults` that are not among them under any name."""
        below = Configuration(defaults)
        hidden = {
            name
            for option in OPTIONS
            if self.find(option) is not None
            for name in (option.key, *option.fallback_keys)
        }
        return Configuration(
            {**{k: v for k, v in below.items() if k not in hidden}, **self._values}
        )


def _as_text(key: object, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise IllegalConfigurationError(
        f"setting is not text: key={key} value={value!r} type={type(value).__name__}; give a "
        f"string, a number or a boolean"
    )


def _open(key: str, *fallback_keys: str) -> ConfigOption[str | None]:
    """Text that nothing stands for where it is not configured."""
    return ConfigOption(key, _text, None, fallback_keys)


STATE_BACKEND = _open("state.backend", "state.backend.type")
CHECKPOINT_STORAGE = ConfigOption(
    CHECKPOINT_STORAGE_KEY, value_kinds.storage, None, ("execution.checkpointing.storage",)
)
CHECKPOINTS_DIR = _open("state.checkpoints.dir", "execution.checkpointing.dir")
SAVEPOINTS_DIR = _open("state.savepoints.dir", "execution.checkpointing.savepoint-dir")
MAX_STATE_SIZE = ConfigOption(MAX_STATE_SIZE_KEY, value_kinds.size(0), DEFAULT_MAX_STATE_BYTES)
INLINE_THRESHOLD = ConfigOption(
    "execution.checkpointing.data-inline-threshold",
    value_kinds.size(0),
    DEFAULT_INLINE_BYTES,
    ("state.storage.fs.memory-threshold", "state.backend.fs.memory-threshold"),
)
ASYNCHRONOUS = ConfigOption("state.backend.async", value_kinds.boolean, True)
INCREMENTAL = ConfigOption(
    "execution.checkpointing.incremental", value_kinds.boolean, True, ("state.backend.incremental",)
)
ROCKSDB_PREFIX = "state.backend.rocksdb."
ROCKSDB_LOCALDIR = _open("state.backend.rocksdb.localdir")
# A job's state servers and a process of one's own have defaults of their own.
TIMER_SERVICE = ConfigOption(
    "state.backend.rocksdb.timer-service.factory",
    value_kinds.choice(HEAP="HEAP", ROCKSDB="ROCKSDB"),
    None,
)

_INTERVAL: ConfigOption[float | None] = ConfigOption(
    "execution.checkpointing.interval", _seconds, None
)
_MODE = ConfigOption(
    "execution.checkpointing.mode",
    value_kinds.choice(**{mode.name: mode for mode in CheckpointingMode}),
    CheckpointingMode.EXACTLY_ONCE,
)
_TIMEOUT = ConfigOption("execution.checkpointing.timeout", _seconds, 600.0)
_MAX_CONCURRENT = ConfigOption("execution.checkpointing.max-concurrent-checkpoints", _count, 1)
_MIN_PAUSE = ConfigOption("execution.checkpointing.min-pause", _seconds, 0.0)
_TOLERABLE = ConfigOption("execution.checkpointing.tolerable-failed-checkpoints", _count, 0)
_RETENTION = ConfigOption(
    "execution.checkpointing.externalized-checkpoint-retention",
    value_kinds.choice(
        NO_EXTERNALIZED_CHECKPOINTS=CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION,
        DELETE_ON_CANCELLATION=CheckpointRetentionPolicy.RETAIN_ON_FAILURE,
        RETAIN_ON_CANCELLATION=CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION,
    ),
    CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION,
)

OPTIONS: tuple[ConfigOption[Any], ...] = (
    STATE_BACKEND,
    CHECKPOINT_STORAGE,
    CHECKPOINTS_DIR,
    SAVEPOINTS_DIR,
    MAX_STATE_SIZE,
    INLINE_THRESHOLD,
    ASYNCHRONOUS,
    INCREMENTAL,
    ROCKSDB_LOCALDIR,
    TIMER_SERVICE,
    _INTERVAL,
    _MODE,
    _TIMEOUT,
    _MAX_CONCURRENT,
    _MIN_PAUSE,
    _TOLERABLE,
    _RETENTION,
)


def checkpoint_config(configuration: Configuration) -> CheckpointConfig:
    """The coordinator's settings, of `execution.checkpointing.*`.

    Raises:
        IllegalConfigurationError: a setting has a value that it cannot have.
    """
    get = configuration.get_option
    try:
        return CheckpointConfig(
            interval=get(_INTERVAL),
            timeout=get(_TIMEOUT),
            max_concurrent=get(_MAX_CONCURRENT),
            min_pause=get(_MIN_PAUSE),
            tolerable_failures=get(_TOLERABLE),
            mode=get(_MODE),
            retention=get(_RETENTION),
        )
    except IllegalConfigurationError:
        raise
    except UserError as error:
        raise IllegalConfigurationError(f"key=execution.checkpointing.*: {error}") from error
