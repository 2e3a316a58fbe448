"""Commands, as a person types them one after the other; those of a page, too."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from .e2e_cluster import Cluster

__all__ = ["at_hand", "commands", "type_in", "watch"]

_BLOCK = re.compile(r"^```sh[^`\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def at_hand(cluster: Cluster, folder: Path) -> dict[str, str]:
    """The environment of a person who has this cluster, and the tools, on the PATH."""
    tools = folder / "bin"
    tools.mkdir()
    for tool in ("kubectl", "helm", "moorage", "kubectl-moorage"):
        beside = Path(sys.executable).parent / tool
        found = shutil.which(tool) or (str(beside) if beside.exists() else None)
        if found is None:
            pytest.skip(f"needs {tool}")
        (tools / tool).symlink_to(found)
    path = f"{tools}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "KUBECONFIG": str(_only(cluster, folder))}


def _only(cluster: Cluster, folder: Path) -> Path:
    """The kubeconfig, with the context that the tests were given as the current one."""
    known = yaml.safe_load(cluster.kubeconfig.read_text())
    known["current-context"] = cluster.context or known["current-context"]
    file = folder / "kubeconfig"
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(known))
    return file


def commands(page: Path, section: str = "") -> list[str]:
    """Every command of the page's shell blocks, or of one section's; with its comments.

    Lines that end in a backslash are one command with what follows.
    """
    text = page.read_text()
    if section:
        head = f"\n## {section}\n"
        assert text.count(head) == 1, f"{page.name} has no section {section!r}"
        text = text.partition(head)[2].partition("\n## ")[0]
    found = "\n".join(block for block in _BLOCK.findall(text)).replace("\\\n", "")
    return [line for line in found.splitlines() if line.strip() and not line.startswith("#")]


def type_in(command: str, folder: Path, environment: Mapping[str, str], seconds: float) -> str:
    """Run a command to its end; what it printed. It must succeed."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert done.returncode == 0, f"{command}\nstatus={done.returncode}\n{done.stdout}"
    return done.stdout


def watch(
    command: str, folder: Path, environment: Mapping[str, str], seen: Callable[[], None]
) -> None:
    """Run a command that shows changes until it is interrupted: when `seen` comes back."""
    shown = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        seen()
        assert shown.poll() is None, f"{command}\n{shown.communicate()[1].decode()}"
    finally:
        shown.send_signal(signal.SIGINT)
        shown.communicate(timeout=30)
