"""The containers of a manifest's pods, each with namespaces of its own: network, mounts and name.

What Kubernetes does for them is done here: names and addresses, variables, `$(NAME)` in commands,
and volumes. A volume is mounted below /mnt, which is empty otherwise.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from shoal.engines.hosts import NETWORK, Hosts

MANIFESTS = Path(__file__).parents[2] / "examples" / "kubernetes"
BEGIN = """
echo "$POD" > /proc/sys/kernel/hostname
mount --bind "$HOSTS" /etc/hosts
mount -t tmpfs none /mnt
for each in $VOLUMES; do
    mkdir "${each#*:}"
    mount --bind "${each%%:*}" "${each#*:}"
done
mkdir -p /tmp/ray
mount -t tmpfs none /tmp/ray
exec "$@"
"""


def manifest(name: str) -> dict[str, dict[str, Any]]:
    """The objects of a manifest, by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((MANIFESTS / name).read_text())}


class Pods:
    """Starts containers of pods that find each other by their names, and see no other Ray.

    names:    the names of each pod, the first of which is its host name
    secrets:  the files of each secret
    maps:     the texts of each config map
    folder:   where volumes and outputs are kept
    """

    def __init__(
        self,
        names: Sequence[Sequence[str]],
        secrets: Mapping[str, Mapping[str, bytes]],
        maps: Mapping[str, Mapping[str, str]],
        folder: Path,
    ) -> None:
        self._hosts = Hosts([own for own, *_ in names])
        self._given = {"secret": secrets, "configMap": maps}
        self._folder = folder
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._file = folder / "hosts"
        self._file.write_text("127.0.0.1 localhost\n")
        self._lines = {
            own: f"{NETWORK}.{number} {own} {' '.join(more)}\n"
            for number, (own, *more) in enumerate(names, 1)
        }

    def __enter__(self) -> Pods:
        self._hosts.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        for pod in self._hosts.names:  # with what the container's process has started
            own = Path(self._hosts.namespace(pod)).name
            found = subprocess.run(["ip", "netns", "pids", own], capture_output=True, check=True)
            for pid in map(int, found.stdout.split()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for each in self._started.values():
            each.wait()
        self._hosts.__exit__()

    def name(self, pod: str) -> None:
        """Have all pods find a pod by its names."""
        with self._file.open("a") as file:
            file.write(self._lines[pod])

    def address(self, pod: str) -> str:
        return self._lines[pod].split()[0]

    def start(
        self, pod: str, spec: Mapping[str, Any], words: Sequence[str] = (), **variables: str
    ) -> None:
        """Start the container of a pod, with its own command or another one."""
        [container] = spec["containers"]
        env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **variables}
        env |= {each["name"]: self._value(each, pod) for each in container.get("env", [])}
        volumes = {each["name"]: self._volume(pod, each) for each in spec.get("volumes", [])}
        mounts = [
            f"{volumes[each['name']]}:{each['mountPath']}" for each in container["volumeMounts"]
        ]
        own = {
            "POD": pod,
            "HOSTS": str(self._file),
            "VOLUMES": " ".join(mounts),
            "HOME": str(self._folder),
        }
        command = [_expanded(each, env) for each in words or container["command"]]
        enters = ["nsenter", f"--net={self._hosts.namespace(pod)}", "unshare", "--mount", "--uts"]
        with self._output(pod).open("wb") as output:
            self._started[pod] = subprocess.Popen(
                [*enters, "sh", "-euc", BEGIN, "sh", *command],
                env=env | own,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
            )

    def within(self, pod: str, words: Sequence[str], **variables: str) -> str:
        """Run a command in a pod that has started, and return what it prints."""
        pid = self._started[pod].pid
        kinds = {"net": "net", "mount": "mnt", "uts": "uts"}
        enters = ["nsenter", *(f"--{k}=/proc/{pid}/ns/{file}" for k, file in kinds.items())]
        env = dict(
            each.split("=", 1)
            for each in Path(f"/proc/{pid}/environ").read_text().split("\0")
            if each
        )
        done = subprocess.run(
            [*enters, *words], env=env | variables, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ended(self, pods: Sequence[str], timeout_s: float) -> None:
        """Wait until pods have ended, all with status 0."""
        for pod in pods:
            try:
                code = self._started[pod].wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = None
            assert code == 0, f"{pod}: {code}\n{self.said(pod)}"

    def said(self, pod: str) -> str:
        return self._output(pod).read_text()

    def _output(self, pod: str) -> Path:
        return self._folder / f"{pod}.log"

    def _value(self, variable: Mapping[str, Any], pod: str) -> str:
        if "value" in variable:
            return str(variable["value"])
        source = variable["valueFrom"]
        if "secretKeyRef" in source:
            asked = source["secretKeyRef"]
            return self._given["secret"][asked["name"]][asked["key"]].decode()
        assert source["fieldRef"] == {"fieldPath": "spec.nodeName"}
        return f"node-of-{pod}"

    def _volume(self, pod: str, volume: Mapping[str, Any]) -> Path:
        """Make a volume as the kubelet does: files are links to those of a folder beside them."""
        folder = self._folder / f"{pod}-{volume['name']}"
        folder.mkdir()
        for kind, naming in (("secret", "secretName"), ("configMap", "name")):
            if kind not in volume:
                continue
            files = self._given[kind][volume[kind][naming]]
            data = folder / "..data"
            data.mkdir()
            for name, text in files.items():
                (data / name).write_bytes(text if isinstance(text, bytes) else text.encode())
                (data / name).chmod(volume[kind].get("defaultMode", 0o644))
                (folder / name).symlink_to(f"..data/{name}")
        return folder


def _expanded(word: str, env: Mapping[str, str]) -> str:
    """A word of a command, with the variables of its container in the places of `$(NAME)`."""
    return re.sub(r"\$\((\w+)\)", lambda match: env[match[1]], str(word))
