"""What every kind of test shares: who runs what and when, the time of soak tests, an S3 server."""

import gc
import os
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from moorage_testing.turns import Turns, from_another_place, turn_of

from moorage_api import Duration

# The fixtures s3_server and s3_store.
pytest_plugins = ["moorage_testing.s3_server"]

# How long an example takes says something about the machine, not about the code.
settings.register_profile("moorage", deadline=None)
settings.load_profile("moorage")


# It would read the constants of all modules that are imported, half a minute in each process, for
# one example in twenty to have one of them.
pytest.MonkeyPatch().setattr(providers, "is_local_module_file", lambda _: False)


def pytest_addoption(parser):
    parser.addoption(
        "--soak-time",
        default="10m",
        metavar="TIME",
        help="how long each soak test may go on, such as 90s or 2h (make soak TIME=2h)",
    )
    parser.addoption(
        "--kubeconfig",
        metavar="FILE",
        help="a real API server to run the control plane's suites on as well: contexts kind-* "
        "only, but for tests/e2e, which take any",
    )
    parser.addoption("--kube-context", metavar="NAME", help="the context of --kubeconfig to use")


@pytest.fixture(scope="session")
def soak_seconds(request):
    """The time a soak test has, in seconds."""
    try:
        return Duration(request.config.getoption("--soak-time")).seconds
    except ValueError as error:
        raise pytest.UsageError(f"--soak-time {error}; write 90s, 10m or 2h") from error


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    # Modules and thirteen thousand tests are no garbage: to look for it among them, again and
    # again, is most of what some processes do where memory is slow.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items):
    # Before, too: which tests of a parameter pytest puts together hangs on which it finds first,
    # and each process finds others first.
    items.sort(key=lambda item: turn_of(item.nodeid))
    yield
    items.sort(key=lambda item: turn_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return Turns(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_configure(config):
    worker = getattr(config, "workerinput", None)
    if worker and config.args == config.getini("testpaths"):
        number, of = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
        config.args = from_another_place(config.args, config.rootpath, number, of)
    hear_signals()
    if has_room(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def hear_signals():
    """Let tests that send signals work in the background of a shell, which has some ignored."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            # Still nothing to us; but what is ignored stays so in processes that are started.
            signal.signal(number, lambda *_: None)


MEMORY = Path("/dev/shm")
NEEDED_BYTES = 8 << 30


def has_room(folder):
    """Whether temporary folders can be in memory, where a sync costs nothing.

    What tests kill are processes, which lose nothing of a file; none cuts the power.
    """
    try:
        numbers = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
        free = min(int(numbers["MemAvailable:"]) << 10, shutil.disk_usage(folder).free)
    except (OSError, KeyError, ValueError):
        return False
    return free > NEEDED_BYTES and os.access(folder, os.W_OK)
