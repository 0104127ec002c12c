"""Credentials: what a process shows and trusts on tls:// connections, from a folder of its host.

    authority.pem      the certificate of the authority, whose certificates are trusted
    certificate.pem    the certificate of this host or person
    key.pem            its key, which its owner alone may read

`shoal keys` makes them. A file that is replaced counts for new connections.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import time
from typing import Any

from shoal.errors import InvalidValue
from shoal.ownership import ROOT

VARIABLE = "SHOAL_TLS"  # the folder, where no other is given
REQUIRE = "SHOAL_REQUIRE_TLS"
NO = ("", "0", "false", "f", "no", "n", "off")  # as click reads them
AUTHORITY, CERTIFICATE, KEY = FILES = "authority.pem", "certificate.pem", "key.pem"
ANY_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL
ALSO_LEAVES = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # a trusted certificate may be no authority

Stamps = tuple[int, ...]
Fields = dict[str, Any]  # of a certificate, as `SSLSocket.getpeercert` has them

log = logging.getLogger("shoal.node")


@dataclass(frozen=True)
class Credentials:
    """The contexts of connections.

    Attributes:
        accepts: the context of a listener.
        connects: the context of a caller.
        described: the name, the authority and the last day of the certificate, for messages.
        authority: the name of the authority.
    """

    accepts: ssl.SSLContext
    connects: ssl.SSLContext
    described: str
    authority: str


def default_folder() -> str:
    """Return the folder of this process's credentials; "" if none is set."""
    return os.environ.get(VARIABLE, "")


def set_default(folder: str) -> Callable[[], None]:
    """Set the folder of this process, and of those that it starts; return what takes it back.

    Raises:
        InvalidValue: as `credentials`
    """
    credentials(folder)
    return _set(VARIABLE, str(Path(folder).absolute()))


def require_tls() -> Callable[[], None]:
    """Refuse plain links between hosts in this process, and in those that it starts."""
    return _set(REQUIRE, "1")


def requires_tls() -> bool:
    """Return whether plain links between hosts are refused."""
    return os.environ.get(REQUIRE, "").lower() not in NO


def _set(name: str, value: str) -> Callable[[], None]:
    before = os.environ.get(name)
    os.environ[name] = value

    def restore() -> None:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before

    return restore


def credentials(folder: str) -> Credentials:
    """Return what a folder has; the folder of this process if "" is given.

    Raises:
        InvalidValue: no folder is set, a file is missing or damaged, others can read the key, or
            the certificate is of another authority or not of this day. The text names path, date
            or authority.
    """
    where = folder or default_folder()
    found, own, trusted = _checked(where)
    _check_day(Path(where, CERTIFICATE), own)
    for authority in trusted:
        _check_day(Path(where, AUTHORITY), authority)
    return found


def check_files(folder: str) -> None:
    """Refuse files that do not belong together, on whatever days they count.

    Raises:
        InvalidValue: as `credentials`
    """
    _checked(folder)


def _checked(where: str) -> tuple[Credentials, Fields, list[Fields]]:
    if not where:
        raise InvalidValue(
            "tls:// needs the certificate of this host: pass --tls FOLDER (or set SHOAL_TLS); "
            "`shoal keys init` and `shoal keys add NAME` make one"
        )
    try:
        held = [Path(where, name).stat() for name in FILES]
    except OSError as error:
        raise InvalidValue(
            f"{error.filename}: {error.strerror}; --tls names a folder with {', '.join(FILES)}, as "
            "`shoal keys add NAME` makes it"
        ) from None
    key = held[-1]
    # root's may be its group's, as for PostgreSQL: so a secret of Kubernetes comes to a user
    if key.st_mode & (0o037 if key.st_uid == ROOT else 0o077):
        path = Path(where, KEY)
        raise InvalidValue(f"{path} can be read by other users: chmod 600 {path}")
    return _read(where, tuple(each.st_mtime_ns for each in held))


def current(folder: str) -> Credentials:
    """Return what a folder has, or what it had when it was usable last in this process.

    So a mistake, or the moment in which files are replaced, ends no process that is at work.

    Raises:
        InvalidValue: as `credentials`, where it has never been usable
    """
    where = folder or default_folder()
    try:
        _usable[where] = found = credentials(where)
    except InvalidValue as error:
        if where not in _usable:
            raise
        if _told.get(where) != error.message:
            _told[where] = error.message
            log.warning("the certificate of before is used: %s", error.message)
        return _usable[where]
    return found


def fresh_contexts(folder: str = "") -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return contexts of one's own for a listener and a caller, to change or to measure.

    Raises:
        InvalidValue: as `credentials`
    """
    credentials(folder)
    paths = [str(Path(folder or default_folder(), name)) for name in FILES]
    accepts, connects = (_context(kind, *paths) for kind in _SIDES)
    return accepts, connects


_usable: dict[str, Credentials] = {}
_told: dict[str, str] = {}


@lru_cache(maxsize=64)
def _read(where: str, _: Stamps) -> tuple[Credentials, Fields, list[Fields]]:
    """Return the credentials, and what the certificate and the authorities say of themselves."""
    paths = [str(Path(where, name)) for name in FILES]
    accepts, connects = (_context(kind, *paths) for kind in _SIDES)
    trusted: list[dict[str, Any]] = accepts.get_ca_certs()
    if not trusted:
        raise InvalidValue(f"{paths[0]} has a certificate that is not an authority's")
    authority = _name(trusted[0])
    with _naming(f"{paths[1]} cannot be used on both sides of a connection"):
        own = _shown(paths)
    issuer, name = _name(own, "issuer"), _name(own)
    described = f"{paths[1]} of {name!r}, by {issuer!r}, until {own['notAfter']}"
    try:
        _meet(accepts, connects, ANY_TIME)
    except ssl.SSLError as error:
        raise InvalidValue(
            f"{paths[1]} of {name!r}, by {issuer!r}, is not trusted by {paths[0]} of {authority!r} "
            f"({_said(error)}): use the files that one `shoal keys add` has made"
        ) from None
    return Credentials(accepts, connects, described, authority), own, trusted


def _context(kind: Any, authority: str, certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the authority counts: hosts have many names
    context.verify_mode = ssl.CERT_REQUIRED
    if kind is ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # no session is resumed
    with _naming(f"{authority} has no certificate in PEM"):
        context.load_verify_locations(authority)
    with _naming(f"{certificate} has no certificate in PEM for the key beside it"):
        context.load_cert_chain(certificate, key, _no_password)
    return context


@contextmanager
def _naming(problem: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # those of OpenSSL are such, too
        raise InvalidValue(f"{problem}: {_said(error)}") from None


def _said(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    reason = getattr(error, "reason", None) or error.strerror or error
    return str(reason).lower().replace("_", " ")


_SIDES = ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT


def _no_password() -> str:
    """Refuse a key with a password, for which OpenSSL would ask on the terminal."""
    raise InvalidValue("the key has a password, which processes without a terminal cannot know")


def _shown(paths: list[str]) -> dict[str, Any]:
    """Return the fields of a certificate: Python tells those of a peer's, once it is trusted."""
    accepts, connects = (_context(kind, *paths) for kind in _SIDES)
    for each in (accepts, connects):
        each.load_verify_locations(paths[1])
    return _meet(accepts, connects, ANY_TIME | ALSO_LEAVES)


def _meet(accepts: ssl.SSLContext, connects: ssl.SSLContext, flags: int) -> dict[str, Any]:
    """Shake hands with oneself in memory, and return what the certificate says."""
    before = accepts.verify_flags, connects.verify_flags
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        accepts.verify_flags |= flags
        connects.verify_flags |= flags
        ends = connects.wrap_bio(here, there), accepts.wrap_bio(there, here, server_side=True)
        for end in (*ends, *ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    finally:
        accepts.verify_flags, connects.verify_flags = before
    found: Any = ends[0].getpeercert()
    return found  # type: ignore[no-any-return]


def _check_day(path: Path, own: Fields) -> None:
    now = time()
    try:
        begins, ends = (ssl.cert_time_to_seconds(own[each]) for each in ("notBefore", "notAfter"))
    except (KeyError, ValueError):
        raise InvalidValue(f"{path} is damaged: it has no dates") from None
    if now > ends:
        how = "`shoal keys add` renews it" if path.name == CERTIFICATE else "make a new authority"
        raise InvalidValue(f"{path} has expired on {own['notAfter']}: {how}")
    if now < begins:
        raise InvalidValue(f"{path} begins on {own['notBefore']}: is the clock of this host right?")


def _name(of: dict[str, Any], field: str = "subject") -> str:
    names = {key: value for part in of[field] for key, value in part}
    return str(names.get("commonName", "?"))
