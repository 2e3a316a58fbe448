"""Where the chart is, its cases, and small questions to what Helm makes of it."""

import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from moorage_testing.scripts import ROOT, script

__all__ = ["CASES", "CHART", "NAMESPACE", "RELEASE", "ROOT", "chart_docs", "find_helm", "of_kind"]

CHART = ROOT / "charts" / "moorage"
CASES = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").iterdir())
RELEASE = "boat"
NAMESPACE = "control"

Object = dict[str, Any]


def find_helm() -> str | None:
    """The program: as HELM says, on PATH, or where `make helm` puts it."""
    beside = Path(sys.executable).parent / "helm"
    found = os.environ.get("HELM") or shutil.which("helm")
    return found or (str(beside) if beside.exists() else None)


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    """Those of these kinds."""
    return [one for one in objects if one["kind"] in kinds]


def chart_docs() -> ModuleType:
    """The script that writes the chart's generated files."""
    return script("chart_docs")
