"""What is cut out of images: it is there to be cut, nothing else is, and the rest works without."""

import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest

ROOT = Path(__file__).parents[3]
SITE_PACKAGES = Path(pyspark.__file__).parents[1]
JARS = SITE_PACKAGES / "pyspark/jars"

trim = SimpleNamespace(**runpy.run_path(str(ROOT / "runtime/image/trim.py"), run_name="trim"))


@pytest.mark.parametrize("target", ["operator", "runtime"])
def test_everything_that_is_cut_is_in_the_packages_of_today(target):
    for cut in trim.CUTS[target]:
        assert next(SITE_PACKAGES.glob(cut.paths), None), cut
    for jar in (*trim.NATIVE_JARS, trim.PLATFORM_JARS):
        assert next(JARS.glob(jar), None), jar


@pytest.fixture
def packages(tmp_path):
    """Packages as an installer lays them, a byte a file."""
    for name in (
        "botocore/data/s3/2006/service.json",
        "botocore/data/sts/2011/service.json",
        "botocore/data/ec2/2016/service.json",
        "botocore/data/endpoints.json",
        *(
            f"kubernetes/{kind}/{folder}/one.py"
            for kind in ("client", "aio/client")
            for folder in ("api", "models")
        ),
        "kubernetes/client/rest.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return tmp_path


def test_what_is_not_used_goes_and_the_rest_stays(packages):
    assert trim.trim("operator", packages, "x86_64") == 5
    left = sorted(str(p.relative_to(packages)) for p in packages.rglob("*") if p.is_file())
    assert left == [
        "botocore/data/endpoints.json",
        "botocore/data/s3/2006/service.json",
        "botocore/data/sts/2011/service.json",
        "kubernetes/client/rest.py",
    ]


def test_a_cut_that_finds_nothing_ends_the_build(packages):
    trim.trim("operator", packages, "x86_64")
    with pytest.raises(LookupError, match=r"botocore/data"):
        trim.trim("operator", packages, "x86_64")


@pytest.mark.parametrize(
    ("machine", "own"),
    [("x86_64", "librocksdbjni-linux64.so"), ("aarch64", "librocksdbjni-linux-aarch64.so")],
)
def test_a_jar_keeps_its_classes_and_the_native_part_of_this_machine(tmp_path, machine, own):
    jar = tmp_path / "rocksdbjni-9.jar"
    names = ["librocksdbjni-linux64.so", "librocksdbjni-linux-aarch64.so"]
    names += ["librocksdbjni-linux64-musl.so", "librocksdbjni-win64.dll", "org/One.class"]
    with zipfile.ZipFile(jar, "w") as made:
        for name in names:
            made.writestr(name, "x" * 100)
    assert trim._thin(jar, trim._OWN[machine]) > 300
    assert zipfile.ZipFile(jar).namelist() == [own, "org/One.class"]
    with pytest.raises(LookupError, match="no native part"):
        trim._thin(jar, trim._OWN["aarch64" if machine == "x86_64" else "x86_64"])
    assert zipfile.ZipFile(jar).namelist() == [own, "org/One.class"]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_jar_of_today_has_one_native_part_for_a_machine(machine):
    for pattern in trim.NATIVE_JARS:
        for jar in JARS.glob(pattern):
            natives = filter(trim._NATIVE.search, zipfile.ZipFile(jar).namelist())
            assert len(list(filter(trim._OWN[machine].search, natives))) == 1, jar


NETTY = [
    "netty-buffer-4.2.Final.jar",
    "netty-tcnative-classes-2.0.Final.jar",
    "netty-tcnative-boringssl-static-2.0.Final-linux-aarch_64.jar",
    "netty-tcnative-boringssl-static-2.0.Final-linux-x86_64.jar",
    "netty-tcnative-boringssl-static-2.0.Final-osx-x86_64.jar",
    "netty-transport-native-epoll-4.2.Final-linux-riscv64.jar",
]


@pytest.mark.parametrize(("machine", "own"), [("x86_64", NETTY[3]), ("aarch64", NETTY[2])])
def test_of_jars_for_one_platform_each_that_of_this_machine_stays(tmp_path, machine, own):
    for name in NETTY:
        (tmp_path / name).write_text("x")
    assert trim.keep_own(tmp_path, machine) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*NETTY[:2], own])


def test_a_machine_without_a_jar_of_its_own_ends_the_build(tmp_path):
    for name in (NETTY[0], NETTY[2]):
        (tmp_path / name).write_text("x")
    with pytest.raises(LookupError, match=r"netty"):
        trim.keep_own(tmp_path, "x86_64")
    assert len(list(tmp_path.iterdir())) == 2


ARROW = """
import sys
sys.path.insert(0, sys.argv[1])
import pyarrow, pyarrow.acero, pyarrow.csv, pyarrow.dataset, pyarrow.feather, pyarrow.fs
import pyarrow.json, pyarrow.orc, pyarrow.parquet.encryption, pyarrow.substrait
assert pyarrow.__file__.startswith(sys.argv[1]), pyarrow.__file__
"""


def linked_or_copied(source, target):
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy(source, target)


def test_arrow_needs_nothing_of_what_is_cut(tmp_path):
    shutil.copytree(SITE_PACKAGES / "pyarrow", tmp_path / "pyarrow", copy_function=linked_or_copied)
    for cut in trim.CUTS["runtime"]:
        if cut.paths.startswith("pyarrow/"):
            assert trim.apply(cut, tmp_path) > 0
    subprocess.run([sys.executable, "-c", ARROW, tmp_path], check=True, capture_output=True)


WITHOUT = """
import importlib.abc, pkgutil, importlib, sys
class Gone(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        cut = ("kubernetes.client.", "kubernetes.aio.client.")
        if name.startswith(cut) and name.split(".")[-2] in ("api", "models"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Gone())
import moorage_operator
for one in pkgutil.walk_packages(moorage_operator.__path__, "moorage_operator."):
    if not one.name.endswith("__main__"):
        importlib.import_module(one.name)
import moorage_operator.__main__
"""


def test_the_operator_needs_nothing_of_what_is_cut():
    subprocess.run([sys.executable, "-c", WITHOUT], check=True, capture_output=True)
