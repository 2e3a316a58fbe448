"""Certificates as an issuer in a cluster makes them, by openssl; each call a key of its own."""

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["Authority"]

_DAYS = ["-days", "2"]
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Authority:
    """Signs certificates that are for server and client, and have one DNS name.

    Args:
        folder: an empty one, for its files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        _openssl(
            *("req", "-x509", *_KEY, *_DAYS, "-subj", "/CN=moorage-e2e"),
            *("-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.crt")),
        )

    def secret(self, name: str, dns_name: str) -> dict:
        """A Secret of type kubernetes.io/tls with a new certificate, and the authority's."""
        self._count += 1
        key, request, made, more = (
            str(self._folder / f"{self._count}.{kind}") for kind in ("key", "csr", "crt", "ext")
        )
        Path(more).write_text(
            f"subjectAltName=DNS:{dns_name}\nextendedKeyUsage=serverAuth,clientAuth\n"
        )
        _openssl("req", *_KEY, "-subj", "/", "-keyout", key, "-out", request)
        ca = [word for end in ("crt", "key") for word in _ca_option(self._folder, end)]
        _openssl(
            *("x509", "-req", *_DAYS, "-in", request, "-out", made, "-extfile", more),
            *(*ca, "-set_serial", str(self._count)),
        )
        files = {"tls.crt": made, "tls.key": key, "ca.crt": str(self._folder / "ca.crt")}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": name},
            "stringData": {entry: Path(file).read_text() for entry, file in files.items()},
        }

    @property
    def serial(self) -> int:
        """Of the certificate that was made last."""
        return self._count


def _ca_option(folder: Path, end: str) -> tuple[str, str]:
    return ("-CA" if end == "crt" else "-CAkey", str(folder / f"ca.{end}"))


def _openssl(*arguments: str) -> None:
    found = shutil.which("openssl")
    if found is None:
        pytest.skip("needs openssl")
    done = subprocess.run([found, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"openssl {' '.join(arguments)}\n{done.stderr}"
