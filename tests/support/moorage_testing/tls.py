"""Certificates for tests, as a Secret of type kubernetes.io/tls holds them; good until 2120.

| name        | authority | DNS name                |                     |
|-------------|-----------|-------------------------|---------------------|
| `clicks`    | `ca`      | clicks-driver.team.svc  |                     |
| `renewed`   | `ca`      | clicks-driver.team.svc  | another key         |
| `neighbour` | `ca`      | orders-driver.team.svc  | another job's       |
| `stranger`  | `other-ca`| clicks-driver.team.svc  |                     |
| `expired`   | `ca`      | clicks-driver.team.svc  | since 2021          |
"""

import shutil
from pathlib import Path

from moorage_state.server.tls import TlsFiles

__all__ = ["NAME", "authority", "mount", "pem"]

NAME = "clicks-driver.team.svc"

_FILES = Path(__file__).parent / "certificates"


def pem(file: str) -> str:
    """The text of one file, such as `clicks.key`."""
    return (_FILES / file).read_text()


def authority(name: str = "ca") -> str:
    """The certificate of an authority."""
    return pem(f"{name}.crt")


def mount(directory: Path, certificate: str = "clicks", ca: str = "ca") -> TlsFiles:
    """Put a certificate where a pod finds it; one that lies there is replaced."""
    directory.mkdir(exist_ok=True)
    for source, name in (
        (f"{certificate}.crt", "tls.crt"),
        (f"{certificate}.key", "tls.key"),
        (f"{ca}.crt", "ca.crt"),
    ):
        # Another file in its place, as the kubelet makes it.
        new = directory / f"{name}.new"
        shutil.copyfile(_FILES / source, new)
        new.replace(directory / name)
    return TlsFiles(str(directory), NAME)
