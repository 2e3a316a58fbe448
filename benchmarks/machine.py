"""What a figure is worthless without: versions, processor, date."""

import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["describe", "load"]

_PACKAGES = ("moorage", "pyspark", "pyarrow", "pandas", "numpy", "protobuf", "rocksdict")


def describe(now: datetime.datetime) -> dict[str, str]:
    """The machine and the software, as text by name."""
    return {
        "date": now.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{os.cpu_count()} x {_processor()}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
    }


def load() -> float:
    """The load average of the last minute."""
    return os.getloadavg()[0]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
