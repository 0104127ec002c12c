"""Authorities and certificates of `shoal keys`."""

import sys
from stat import S_IMODE

import pytest
from click.testing import CliRunner

from shoal.apps.keys import AUTHORITY_KEY, add_certificate, make_authority
from shoal.cli import main
from shoal.errors import DataCorrupt, DataMissing, InvalidValue, PackageMissing
from shoal.transport.credentials import AUTHORITY, CERTIFICATE, FILES, KEY, credentials


@pytest.fixture
def folder(tmp_path):
    make_authority(tmp_path / "keys", "mine")
    return tmp_path / "keys"


def test_what_is_made_can_be_used_and_is_its_owners(folder):
    own = add_certificate(folder, "node-0")
    assert {each.name for each in own.iterdir()} == {*FILES}
    assert "of 'node-0', by 'mine'" in credentials(str(own)).described
    assert [S_IMODE(each.stat().st_mode) for each in (folder, own)] == [0o700, 0o700]
    keys = own / KEY, folder / AUTHORITY_KEY
    assert [S_IMODE(each.stat().st_mode) for each in keys] == [0o600, 0o600]


def test_a_certificate_is_renewed_with_its_key(folder):
    own = add_certificate(folder, "node-0")
    before = [(own / name).read_bytes() for name in FILES]
    add_certificate(folder, "node-0")
    after = dict(zip(FILES, before, strict=True))
    assert {name for name in FILES if (own / name).read_bytes() != after[name]} == {CERTIFICATE}
    credentials(str(own))


def test_a_folder_that_is_there_keeps_its_mode(tmp_path):
    tmp_path.chmod(0o755)
    make_authority(tmp_path)
    assert S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_an_authority_of_two_halves_is_named(folder, tmp_path):
    make_authority(tmp_path / "other", "mine")
    (folder / AUTHORITY).write_bytes((tmp_path / "other" / AUTHORITY).read_bytes())
    with pytest.raises(InvalidValue, match="is not trusted by"):
        add_certificate(folder, "node-0")


@pytest.mark.parametrize("name", [AUTHORITY, AUTHORITY_KEY])
def test_a_name_of_a_file_is_refused(folder, name):
    with pytest.raises(InvalidValue, match="choose another name"):
        add_certificate(folder, name)


def test_an_authority_is_not_replaced(folder):
    held = (folder / AUTHORITY).read_bytes()
    with pytest.raises(InvalidValue, match="has an authority already"):
        make_authority(folder)
    assert (folder / AUTHORITY).read_bytes() == held


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-x", "a b", "x" * 65, "é"])
def test_a_name_that_could_be_a_path_is_refused(folder, name):
    with pytest.raises(InvalidValue, match="no name for a certificate"):
        add_certificate(folder, name)
    assert {each.name for each in folder.iterdir()} == {AUTHORITY, AUTHORITY_KEY}


def test_a_name_that_no_certificate_can_have_is_refused(tmp_path):
    with pytest.raises(InvalidValue, match="no name for a certificate"):
        make_authority(tmp_path / "keys", "x" * 100)
    assert not (tmp_path / "keys").exists()


def test_a_folder_without_an_authority_is_told(tmp_path):
    with pytest.raises(DataMissing, match="shoal keys init"):
        add_certificate(tmp_path, "node-0")


@pytest.mark.parametrize("name", [AUTHORITY, AUTHORITY_KEY])
def test_a_damaged_authority_is_named(folder, name):
    (folder / name).write_text("nonsense")
    with pytest.raises(DataCorrupt, match=f"{folder / name} is damaged"):
        add_certificate(folder, "node-0")
    assert not (folder / "node-0").exists()


def test_the_package_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "cryptography.x509", raising=False)
    with pytest.raises(PackageMissing, match=r"shoal\[tls\]"):
        make_authority(tmp_path / "keys")


def test_the_commands_make_show_and_refuse(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        return CliRunner().invoke(main, ["keys", *words])

    assert run("add", "node-0").exit_code == 2
    assert "keys/authority.pem" in run("init").output
    added = run("add", "node-0", "node-1")
    assert "--tls keys/node-1" in added.output
    assert '"authority": "Shoal 2' in run("keys/node-0", "--json").output
    assert run("init").exit_code == 2
    assert run("keys/node-7").exit_code == 2
