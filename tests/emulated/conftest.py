"""The API servers that the suites here run on: in memory, emulated over HTTP, and a real one."""

import kmock
import pytest
from moorage_testing.kube.emulator import Emulator
from moorage_testing.kube.servers import Emulated, InMemory, Real
from moorage_testing.manifests import job_object, spec_data


def job_body(namespace, name="clicks", **meta):
    """A job that a real API server takes, too."""
    return job_object(spec_data(f"{namespace}/{name}"), name, namespace=namespace, **meta)


@pytest.fixture
def a_job():
    return job_body


@pytest.fixture
def a_pod():
    def pod(namespace, name="driver", args=(), **meta):
        container = {"name": "driver", "image": "registry.example/none:1", "args": list(args)}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, **meta},
            "spec": {
                "containers": [container],
                "restartPolicy": "Never",
                "nodeSelector": {"moorage.dev/no-such-node": "true"},
            },
        }

    return pod


def pytest_generate_tests(metafunc):
    """Everything runs on the stand-ins; on a real server as well if one is given."""
    if "server" in metafunc.fixturenames:
        real = ["real"] if metafunc.config.getoption("--kubeconfig") else []
        metafunc.parametrize("server", ["memory", "emulator", *real], indirect=True)


@pytest.fixture
async def server(request):
    """An API server: what reaches it, and how a test plays the controllers around it."""
    if request.param == "memory":
        yield InMemory()
    elif request.param == "emulator":
        async with Emulator() as emulator, kmock.Server(emulator):
            served = Emulated(emulator)
            yield served
            await served.cluster.close()
    else:
        option = request.config.getoption
        real = await Real.at(option("--kubeconfig"), option("--kube-context"))
        yield real
        await real.clean()


@pytest.fixture
def cluster(server):
    return server.cluster


@pytest.fixture
async def namespace(server):
    return await server.namespace()


@pytest.fixture
async def other_namespace(server):
    return await server.namespace()


@pytest.fixture
def collected(server):
    return server.collected


@pytest.fixture
def terminate(server):
    return server.terminate
