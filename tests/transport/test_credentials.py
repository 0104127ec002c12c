"""What a process shows and trusts on tls:// connections: files that cannot be used are named."""

import shutil
from datetime import timedelta
from pathlib import Path
from random import Random
from time import time

import pytest

from shoal.apps import keys
from shoal.errors import InvalidValue
from shoal.transport import credentials as credentials_of
from shoal.transport.credentials import (
    AUTHORITY,
    CERTIFICATE,
    FILES,
    KEY,
    credentials,
    current,
    default_folder,
    require_tls,
    requires_tls,
    set_default,
)
from tests.transport.rigs import authority, keys_of


@pytest.fixture
def folder(tmp_path):
    """A folder of credentials that a test may spoil."""
    shutil.copytree(keys_of("node-3"), tmp_path / "own")
    return tmp_path / "own"


def test_a_folder_says_whose_it_is(folder):
    found = credentials(str(folder))
    assert found.authority == "ours"
    assert found.described.startswith(f"{folder / CERTIFICATE} of 'node-3', by 'ours', until ")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(InvalidValue, match=f"{folder / name}: No such file.*shoal keys add"):
        credentials(str(folder))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_damaged_file_is_named(folder, name, content):
    (folder / name).write_text(content)
    named = CERTIFICATE if name == KEY else name
    with pytest.raises(InvalidValue, match=f"{folder / named} has no certificate in PEM"):
        credentials(str(folder))


@pytest.mark.parametrize(
    ("mode", "owner", "refused"),
    [
        (0o604, "root", True),
        (0o660, "root", True),
        (0o640, "root", False),  # as a secret of Kubernetes comes to a user
        (0o640, "me", True),
        (0o604, "me", True),
        (0o600, "me", False),
    ],
)
def test_a_key_that_others_can_read_is_refused(folder, monkeypatch, mode, owner, refused):
    key = folder / KEY
    key.chmod(mode)
    own = key.stat().st_uid
    monkeypatch.setattr(credentials_of, "ROOT", own if owner == "root" else own + 1)
    if refused:
        with pytest.raises(InvalidValue, match=f"chmod 600 {key}"):
            credentials(str(folder))
    else:
        assert credentials(str(folder)).authority


def test_a_key_of_another_certificate_is_refused(folder):
    shutil.copy(keys_of("node-4") / KEY, folder / KEY)
    with pytest.raises(InvalidValue, match="for the key beside it: key values mismatch"):
        credentials(str(folder))


def test_a_key_with_a_password_is_refused(folder):
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key((folder / KEY).read_bytes(), None)
    how = Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    (folder / KEY).write_bytes(key.private_bytes(*how))
    with pytest.raises(InvalidValue, match="has a password"):
        credentials(str(folder))


def test_both_authorities_are_named_where_they_differ(folder):
    shutil.copy(authority("others") / AUTHORITY, folder / AUTHORITY)
    with pytest.raises(InvalidValue, match=r"of 'node-3', by 'ours', is not trusted by .*'others'"):
        credentials(str(folder))


def test_a_certificate_is_no_authority(folder):
    shutil.copy(folder / CERTIFICATE, folder / AUTHORITY)
    with pytest.raises(InvalidValue, match=f"{folder / AUTHORITY} .*not an authority"):
        credentials(str(folder))


def test_a_certificate_counts_on_its_days(folder, monkeypatch):
    monkeypatch.setattr(keys, "EARLIER", timedelta(days=10))
    late = keys.add_certificate(authority(), "late", days=-1)
    with pytest.raises(InvalidValue, match=f"{late / CERTIFICATE} has expired on .*GMT: `shoal"):
        credentials(str(late))
    monkeypatch.setattr(keys, "EARLIER", timedelta(days=-1))
    early = keys.add_certificate(authority(), "early", days=5)
    with pytest.raises(InvalidValue, match=f"{early / CERTIFICATE} begins on .*clock of this host"):
        credentials(str(early))


def test_an_authority_that_has_expired_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "EARLIER", timedelta(days=10))
    keys.make_authority(tmp_path / "keys", "old", days=1)
    own = keys.add_certificate(tmp_path / "keys", "node")
    monkeypatch.setattr(credentials_of, "time", lambda: time() + 3 * 86400)
    with pytest.raises(InvalidValue, match="has expired on"):
        credentials(str(own))
    held = credentials_of._read(str(own), tuple((own / n).stat().st_mtime_ns for n in FILES))
    with pytest.raises(InvalidValue, match=f"{AUTHORITY} has expired on .*make a new authority"):
        credentials_of._check_day(own / AUTHORITY, held[2][0])


def test_a_certificate_for_servers_alone_is_refused(folder, monkeypatch):
    """As some authorities of companies issue them."""
    from cryptography.x509.oid import ExtendedKeyUsageOID

    monkeypatch.setattr(ExtendedKeyUsageOID, "CLIENT_AUTH", ExtendedKeyUsageOID.SERVER_AUTH)
    with pytest.raises((InvalidValue, ValueError)):
        credentials(str(keys.add_certificate(authority(), "servers-alone")))


def test_a_damaged_file_is_refused_by_a_typed_error(folder):
    draws = Random(7)
    whole = {name: (folder / name).read_bytes() for name in FILES}
    refused = 0
    for _ in range(300):
        name = draws.choice(FILES)
        damaged = bytearray(whole[name])
        for _ in range(draws.randint(1, 3)):
            damaged[draws.randrange(len(damaged))] = draws.randrange(256)
        (folder / name).write_bytes(damaged)
        try:
            credentials(str(folder))
        except InvalidValue:
            refused += 1
        (folder / name).write_bytes(whole[name])
    assert refused > 100


def test_what_was_usable_before_is_used_while_it_is_not(folder, caplog):
    with pytest.raises(InvalidValue):
        current(str(folder / "nowhere"))
    before = current(str(folder))
    (folder / KEY).rename(folder / "away")
    assert current(str(folder)) is current(str(folder)) is before
    assert caplog.text.count("the certificate of before is used") == 1
    (folder / "away").rename(folder / KEY)
    keys_of("node-3")
    assert current(str(folder)).authority == "ours"


def test_a_file_that_is_replaced_counts(folder):
    assert "'node-3'" in credentials(str(folder)).described
    for name in FILES:
        shutil.copy(keys_of("node-4") / name, folder / name)
    assert "'node-4'" in credentials(str(folder)).described


def test_the_folder_of_a_process_is_checked_and_can_be_taken_back(folder, monkeypatch):
    monkeypatch.delenv("SHOAL_TLS", raising=False)
    monkeypatch.delenv("SHOAL_REQUIRE_TLS", raising=False)
    monkeypatch.chdir(folder.parent)
    with pytest.raises(InvalidValue, match="nowhere"):
        set_default("nowhere")
    assert default_folder() == ""
    restore, allow = set_default("own"), require_tls()
    assert (Path(default_folder()), requires_tls()) == (folder, True)
    restore()
    allow()
    assert (default_folder(), requires_tls()) == ("", False)
