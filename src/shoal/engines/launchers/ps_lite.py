"""ps-lite's variables: a process that is started as ps-lite's are is that role of a Shoal cluster.

Each variable is honoured, or refused by name where Shoal has nothing that would do the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any, Literal, cast, get_args

import msgspec

from shoal.engines.addresses import between_hosts, own_address
from shoal.engines.environment import ScriptEnvironment
from shoal.engines.launchers.world import ROLE
from shoal.errors import InvalidValue
from shoal.node.dropping import drops_of
from shoal.ownership import cache_folder
from shoal.transport.tcp import endpoint_of, scheme_of, tcp_address

Env = Mapping[str, str]
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")
RoleName = Literal["scheduler", "server", "worker"]
RANK = "DMLC_RANK"
COMPLETE_S = 600.0  # ps-lite waits for ever: launchers may bring processes up late
LEAST_TIMEOUT_S = 3  # of `SchedulerRole.failure_timeout_s`


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The part of this process in a cluster that ps-lite's variables describe.

    Attributes:
        role: what this process is.
        workers, servers: the numbers that make the cluster complete.
        scheduler: the address at which the others find the scheduler.
        host, port: the place at which it listens; "" and 0 for any, on `interface` if that is
            given.
        interface: the network interface.
        rank: the rank that it asks for, -1 for any.
        drop_messages: the percentage of messages that it does not send, as an option.
        failure_timeout_s: the silence after which a member counts as failed; None for the usual.
        probe_s: the time until an unanswered request is asked about; None for the usual.
        init_timeout_s: the time until the cluster has to be complete.
        verbose: 1 to tell of connections, 2 of messages as well.
        unknown: the variables that begin as ps-lite's do and that Shoal does not know.
    """

    role: RoleName
    workers: int
    servers: int
    scheduler: str
    host: str = ""
    port: int = 0
    interface: str = ""
    rank: int = -1
    drop_messages: str = ""
    failure_timeout_s: float | None = None
    probe_s: float | None = None
    init_timeout_s: float = COMPLETE_S
    verbose: int = 0
    unknown: tuple[str, ...] = ()

    @property
    def listen(self) -> str:
        """The address at which this process listens; "" for one that the role chooses."""
        if self.scheduler.startswith("unix://"):
            return self.scheduler if self.role == "scheduler" else ""
        if not self.host and not self.port:
            return ""
        host = self.host or endpoint_of(own_address(self.scheduler, self.interface))[0]
        return tcp_address(host, self.port, scheme_of(self.scheduler))


def part_of(env: Env) -> Part | None:
    """Return the part of this process; None if ps-lite's variables are not set.

    Raises:
        InvalidValue: a variable is missing or has no such value, or Shoal cannot do what it says;
            the text names it
    """
    if not env.get(ROLE):
        if found := [name for name in NEEDED if env.get(name)]:
            raise InvalidValue(
                f"{' and '.join(found)} without {ROLE}: set it to scheduler, server or worker, or "
                "unset ps-lite's variables"
            )
        return None
    role = _role(env)
    for name in NEEDED:
        if not env.get(name):
            raise InvalidValue(f"{ROLE}={role} without {name}: ps-lite's start needs it")
    for name, refuse in REFUSED.items():
        if (text := env.get(name)) and (why := refuse(text)):
            raise InvalidValue(f"{name}={text}: {why}")
    places, told = _places(role, env), ScriptEnvironment.read(env)
    if not told.token and not places["scheduler"].startswith("unix://"):
        raise InvalidValue(
            f"{ROLE}={role} without SHOAL_TOKEN: nothing listens over TCP without one; set it to a "
            "secret of 16 characters or more, the same for all processes of the cluster, or set "
            "DMLC_LOCAL=1 if all of them are on this host"
        )
    timeout_s = _number(env, "PS_HEARTBEAT_TIMEOUT", LEAST_TIMEOUT_S)
    resend_ms = _number(env, "PS_RESEND_TIMEOUT", 1)
    _number(env, "PS_RESEND", 0, 1)  # Shoal always repeats what is not answered
    return Part(
        role=role,
        workers=_number(env, "DMLC_NUM_WORKER", 1) or 0,
        servers=_number(env, "DMLC_NUM_SERVER", 0) or 0,
        **places,
        rank=-1 if (rank := _number(env, RANK, 0)) is None else rank,
        drop_messages=_drops(env),
        failure_timeout_s=timeout_s,
        probe_s=resend_ms / 1000 if resend_ms else None,
        init_timeout_s=told.init_timeout_s if env.get("SHOAL_INIT_TIMEOUT_S") else COMPLETE_S,
        verbose=_number(env, "PS_VERBOSE", 0, 2) or 0,
        unknown=tuple(sorted(name for name in env if _is_unknown(name))),
    )


def _role(env: Env) -> RoleName:
    if env[ROLE] not in get_args(RoleName):
        raise InvalidValue(f"{ROLE} is scheduler, server or worker, not {env[ROLE]!r}")
    return cast(RoleName, env[ROLE])


def _places(role: RoleName, env: Env) -> dict[str, Any]:
    """Return the fields of a part that say where the scheduler and this process listen."""
    root, port = _host(env, "DMLC_PS_ROOT_URI"), _number(env, "DMLC_PS_ROOT_PORT", 1, 65535) or 0
    host, interface = _host(env, "DMLC_NODE_HOST"), env.get("DMLC_INTERFACE", "")
    own_port = _number(env, "PORT", 0, 65535) or 0
    everywhere = _number(env, "DMLC_USE_KUBERNETES", 0, 1)
    local = _number(env, "DMLC_LOCAL", 0, 1)
    if host and interface:
        raise InvalidValue(
            f"DMLC_NODE_HOST={host} and DMLC_INTERFACE={interface} both say where to listen: unset "
            "one of them"
        )
    if local and (host or interface):
        name = "DMLC_NODE_HOST" if host else "DMLC_INTERFACE"
        raise InvalidValue(f"{name}={host or interface} with DMLC_LOCAL=1: no network is used")
    if local:
        return {"scheduler": f"unix://{cache_folder(env) / 'ps-lite' / str(port)}.sock"}
    scheduler = between_hosts(root, port)
    if role == "scheduler":
        return {"scheduler": scheduler, "host": "0.0.0.0" if everywhere else root, "port": port}
    return {"scheduler": scheduler, "host": host, "port": own_port, "interface": interface}


def _host(env: Env, name: str) -> str:
    """Return the host that a variable names: a name, or a number of IP."""
    text = env.get(name, "")
    if text and not _NAME.fullmatch(text):
        try:
            ip_address(text)
        except ValueError:
            raise InvalidValue(
                f"{name}={text} is no host: give its name or its number alone, without a port"
            ) from None
    return text


def _drops(env: Env) -> str:
    text = env.get("PS_DROP_MSG", "")
    try:
        drops_of(text)
    except InvalidValue:
        raise InvalidValue(f"PS_DROP_MSG={text} is not a percentage below 100") from None
    return text


def _number(env: Env, name: str, least: int, most: int | None = None) -> int | None:
    """Return the number that a variable says; None if it is not set."""
    text = env.get(name, "")
    if not text:
        return None
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if number < least or (most is not None and number > most):
        bounds = f"from {least} to {most}" if most is not None else f"of {least} or more"
        raise InvalidValue(f"{name}={text} is not a whole number {bounds}")
    return number


NEEDED = ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
HONOURED = (
    ROLE,
    *NEEDED,
    "DMLC_NODE_HOST",
    "DMLC_INTERFACE",
    "DMLC_LOCAL",
    "DMLC_USE_KUBERNETES",
    RANK,
    "PORT",
    "PS_VERBOSE",
    "PS_RESEND",
    "PS_RESEND_TIMEOUT",
    "PS_HEARTBEAT_TIMEOUT",
    "PS_DROP_MSG",
)
Refusal = Callable[[str], str]  # of a value: why Shoal cannot do it, or ""
REFUSED: dict[str, Refusal] = {
    "DMLC_PS_VAN_TYPE": lambda text: (
        ""
        if text in ("zmq", "0mq", "tcp")
        else "Shoal's members talk over TCP and Unix sockets, as with zmq; unset it"
    ),
    "DMLC_PS_WATER_MARK": lambda _: (
        "Shoal bounds what is under way to a server in bytes (256 MiB), not in messages; unset it"
    ),
    "PS_HEARTBEAT_INTERVAL": lambda text: (
        "" if text == "1" else "members of Shoal tell each second that they live; unset it"
    ),
}
# set by dmlc's tracker for its own use
OF_TRACKERS = ("DMLC_TRACKER_", "DMLC_JOB_", "DMLC_TASK_ID", "DMLC_NUM_ATTEMPT")


def _is_unknown(name: str) -> bool:
    known = name in HONOURED or name in REFUSED or name.startswith(OF_TRACKERS)
    return name.startswith("DMLC_") and not known
