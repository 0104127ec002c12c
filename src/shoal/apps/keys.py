"""`shoal keys`: an authority, and the certificates of hosts and people for tls:// connections."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from shoal.errors import DataMissing, InvalidValue
from shoal.extras import require
from shoal.ownership import make_folders
from shoal.storage.files import damaged, read_text, read_whole, write_private, write_whole
from shoal.transport.credentials import AUTHORITY, CERTIFICATE, KEY, check_files

AUTHORITY_KEY = "authority-key.pem"
EARLIER = timedelta(hours=1)  # from when certificates count: clocks differ
AUTHORITY_DAYS = 3650
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


def make_authority(folder: Path, name: str = "", days: int = AUTHORITY_DAYS) -> Path:
    """Make an authority in a folder, and return the path of its certificate.

    Args:
        folder: the folder; if it is missing it is made, for its owner alone.
        name: the authority's name, which errors tell; "Shoal" and the time if empty.
        days: the number of days for which it counts.

    Raises:
        InvalidValue: the folder has an authority, or the name is too long.
        PackageMissing: `cryptography` is not installed.
    """
    x509 = _x509()
    if (folder / AUTHORITY).exists() or (folder / AUTHORITY_KEY).exists():
        raise InvalidValue(
            f"{folder} has an authority already, of which `shoal keys add NAME` makes "
            "certificates; remove the folder to begin anew"
        )
    now, key = datetime.now(UTC), _new_key()
    subject = _named(name or f"Shoal {now:%Y-%m-%d %H:%M:%S}")
    signs = dict.fromkeys(("key_cert_sign", "crl_sign"), True)
    built = _built(subject, subject, key.public_key(), now + timedelta(days=days))
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    built = built.add_extension(x509.KeyUsage(**{**_NO_USES, **signs}), critical=True)
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    built = built.add_extension(own_id, critical=False)
    make_folders(folder)
    write_private(folder / AUTHORITY_KEY, _pem_of_key(key))
    write_whole(folder / AUTHORITY, _signed(built, key))
    return folder / AUTHORITY


def add_certificate(folder: Path, name: str, days: int = 365) -> Path:
    """Make the certificate of a host or person, or renew it, and return its folder.

    That folder is what `--tls` names. A certificate that is renewed keeps its key.

    Args:
        folder: the folder of the authority.
        name: the name of the host or person, and of its folder in `folder`.
        days: the number of days for which it counts, at most as long as the authority.

    Raises:
        InvalidValue: a name that is none, or an authority that has expired.
        DataMissing: the folder has no authority.
        DataCorrupt: a file of the authority, or the key, is damaged.
        PackageMissing: `cryptography` is not installed.
    """
    x509 = _x509()
    if not NAME.fullmatch(name):
        raise InvalidValue(
            f"{name!r} is no name for a certificate: use up to 64 letters, digits, '.', '_', '-' "
            "and '@', first a letter or digit"
        )
    if not (folder / AUTHORITY_KEY).exists():
        raise DataMissing(f"{folder} has no authority: make one with `shoal keys init {folder}`")
    key, held, now = (
        _read_key(folder / AUTHORITY_KEY),
        read_text(folder / AUTHORITY),
        datetime.now(UTC),
    )
    try:
        authority = x509.load_pem_x509_certificate(held.encode())
    except ValueError as error:
        raise damaged(folder / AUTHORITY, error) from None
    last = authority.not_valid_after_utc
    if last <= now:
        raise InvalidValue(
            f"the authority in {folder} has expired on {last:%Y-%m-%d}: make a new one"
        )
    own = folder / name
    if own.exists() and not own.is_dir():
        raise InvalidValue(f"{own} is a file of the authority: choose another name")
    mine = _read_key(own / KEY) if (own / KEY).exists() else _new_key()
    until = min(now + timedelta(days=days), last)
    uses = x509.oid.ExtendedKeyUsageOID
    built = _built(_named(name), authority.subject, mine.public_key(), until)
    built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    built = built.add_extension(
        x509.ExtendedKeyUsage([uses.SERVER_AUTH, uses.CLIENT_AUTH]), critical=False
    )
    whose = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    built = built.add_extension(whose, critical=False)
    make_folders(own)
    write_private(own / KEY, _pem_of_key(mine))
    write_whole(own / AUTHORITY, held)
    write_whole(own / CERTIFICATE, _signed(built, key))
    check_files(str(own))  # an authority's two files may not belong together
    return own


_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
_NO_USES = dict.fromkeys(_USES, False)


def _x509() -> Any:
    return require("cryptography.x509", "`shoal keys`")


def _named(name: str) -> Any:
    x509 = _x509()
    try:
        return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])
    except ValueError as error:
        raise InvalidValue(f"{name!r} is no name for a certificate: {error}") from None


def _built(subject: Any, issuer: Any, public_key: Any, until: datetime) -> Any:
    x509 = _x509()
    built = x509.CertificateBuilder(issuer, subject, public_key, x509.random_serial_number())
    return built.not_valid_before(datetime.now(UTC) - EARLIER).not_valid_after(until)


def _signed(built: Any, key: Any) -> str:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding

    text: bytes = built.sign(key, SHA256()).public_bytes(Encoding.PEM)
    return text.decode()


def _new_key() -> Any:
    """Return a new key on the curve P-256, which OpenSSL signs with in some 20 microseconds."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _read_key(path: Path) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(read_whole(path), None)
    except (ValueError, TypeError) as error:
        raise damaged(path, error) from None


def _pem_of_key(key: Any) -> str:
    from cryptography.hazmat.primitives import serialization as parts

    how = parts.Encoding.PEM, parts.PrivateFormat.PKCS8, parts.NoEncryption()
    text: bytes = key.private_bytes(*how)
    return text.decode()
