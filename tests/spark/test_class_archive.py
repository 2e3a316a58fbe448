"""Spark's JVM really maps the archive of Java classes."""

from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from moorage.class_archive import archive_path

pytestmark = pytest.mark.spark


@pytest.mark.usefixtures("spark")
def test_the_jvm_of_a_session_has_mapped_the_archive() -> None:
    if not archive_path().exists():
        pytest.skip("there is no archive: python -m moorage.class_archive")
    gateway: Any = SparkContext._gateway
    assert str(archive_path()) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()
