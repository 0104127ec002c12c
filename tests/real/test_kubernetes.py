"""The manifests for Kubernetes: their commands train, in namespaces that have the pods' names."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.pods import MANIFESTS, Pods, manifest
from tests.real.texts import text
from tests.real.waiting import until
from tests.transport.rigs import keys_of

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="needs namespaces"),
    pytest.mark.skipif(sys.prefix.startswith("/mnt/"), reason="volumes of pods hide this Python"),
]
ROOT = Path(__file__).parents[2]
SECRETS = {"shoal-token": {"token": b"a token of sixteen characters"}}


def secrets():
    """Those that the page has one make."""
    return SECRETS | {"shoal-tls": {f.name: f.read_bytes() for f in keys_of("cluster").iterdir()}}


def maps_of(objects):
    found = objects["ConfigMap"]
    return {found["metadata"]["name"]: found["data"]}


def test_the_pods_of_the_jobset_train_and_end_with_the_workers(tmp_path):
    """Servers and workers come first, and look for a scheduler whose name is not known yet."""
    objects = manifest("jobset.yaml")
    jobs = objects["JobSet"]["spec"]
    name, domain = objects["JobSet"]["metadata"]["name"], jobs["network"]["subdomain"]
    specs, names = {}, []
    for each in jobs["replicatedJobs"]:
        job = each["template"]["spec"]
        assert job["completions"] == job["parallelism"]
        for index in range(job["completions"]):
            pod = f"{name}-{each['name']}-0-{index}"
            specs[pod] = (each["name"], index, job["template"]["spec"])
            names.append((pod, f"{pod}.{domain}"))
    roles = {role: [pod for pod in specs if specs[pod][0] == role] for role, _, _ in specs.values()}
    [scheduler] = roles["scheduler"]
    assert jobs["successPolicy"]["targetReplicatedJobs"] == ["worker"]
    with Pods(names, secrets(), maps_of(objects), tmp_path) as pods:
        others = [*roles["server"], *roles["worker"]]
        for pod in others:
            pods.start(pod, specs[pod][2], JOB_COMPLETION_INDEX=str(specs[pod][1]))
        awaited = text("kubernetes.awaited", name=f"{scheduler}.{domain}")
        for pod in others:
            until(lambda pod=pod: awaited in pods.said(pod))
        pods.name(scheduler)
        pods.start(scheduler, specs[scheduler][2])
        pods.ended(roles["worker"], 120)
        pods.ended([scheduler, *roles["server"]], 5)
        for pod in roles["worker"]:
            accuracy = re.search(r"^accuracy (0\.\d+)", pods.said(pod), re.MULTILINE)
            assert float(accuracy[1]) > 0.8, pods.said(pod)
        told = "".join(map(pods.said, specs))
        assert "listening at tls://" in pods.said(scheduler)
        assert text("kubernetes.plain_link") not in told
        assert text("kubernetes.crowded") not in told, "replicas are on nodes of their own"


@pytest.mark.xdist_group("ray")
def test_the_entry_point_of_the_rayjob_trains_on_the_nodes_of_its_cluster(tmp_path):
    pytest.importorskip("ray")
    objects = manifest("rayjob.yaml")
    job = objects["RayJob"]["spec"]
    cluster = job["rayClusterSpec"]
    [group] = cluster["workerGroupSpecs"]
    head, service = "shoal-ray-head", "shoal-ray-head-svc"
    nodes = [f"shoal-ray-node-{number}" for number in range(group["replicas"])]
    names = [(head, service), *((node,) for node in nodes)]
    with Pods(names, secrets(), maps_of(objects), tmp_path) as pods:
        pods.name(head)
        for pod, spec, where in (
            (head, cluster["headGroupSpec"], ["--head", "--port=6379"]),
            *((node, group, [f"--address={service}:6379"]) for node in nodes),
        ):
            container = spec["template"]["spec"]["containers"][0]
            options = {"num-cpus": container["resources"]["limits"]["cpu"]}
            options |= spec["rayStartParams"] | {"node-ip-address": pods.address(pod)}
            options |= {"object-store-memory": 100_000_000, "include-log-monitor": "false"}
            words = ["ray", "start", *where, *(f"--{k}={v}" for k, v in options.items()), "--block"]
            pods.start(pod, spec["template"]["spec"], words)
            until(lambda pod=pod: "Ray runtime started" in pods.said(pod))
        said = pods.within(
            head, job["entrypoint"].split(), RAY_ADDRESS=f"{pods.address(head)}:6379"
        )
        assert re.search(r"accuracy +0\.[89]", said), said


def test_ray_of_the_image_is_that_of_the_manifest():
    version = manifest("rayjob.yaml")["RayJob"]["spec"]["rayClusterSpec"]["rayVersion"]
    assert f"ARG RAY_VERSION={version}\n" in (MANIFESTS / "Dockerfile").read_text()


def test_the_image_has_all_that_an_installation_needs(tmp_path):
    """The files that the Dockerfile copies are enough for pip."""
    lines = (MANIFESTS / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:] for line in lines if line.startswith("COPY")]
    assert copied
    source = tmp_path / "src"
    source.mkdir()
    for *names, target in copied:
        for name in names:
            into = tmp_path / target.strip("/")
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
                shutil.copytree(ROOT / name, into, ignore=ignored)
            else:
                shutil.copy(ROOT / name, into)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), str(source)], check=True)
    [wheel] = tmp_path.glob("shoal-*.whl")
    assert wheel.stat().st_size > 500_000
    assert (source / "constraints.txt").is_file()
