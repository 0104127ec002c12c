"""Owners of files, and folders that no other user can change."""

import os
import stat

import pytest

from shoal import ownership
from shoal.errors import NotTrusted
from shoal.ownership import others_may_write, others_owner, private_folder


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def another(monkeypatch):
    """From now on this process is another user, to whom what it has written is not his own."""
    return lambda: monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4321)


def test_what_this_user_has_written_is_its_own_and_nobody_elses(tmp_path, another):
    path = tmp_path / "file"
    path.touch()
    assert others_owner(path) == ""
    another()
    assert others_owner(path).startswith("belongs to ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
def test_a_file_of_a_real_other_user_and_a_link_to_it_are_not_ours(tmp_path):
    path, link, ours = tmp_path / "file", tmp_path / "link", tmp_path / "ours"
    path.touch()
    link.symlink_to(path)
    ours.touch()
    os.chown(path, 54321, 54321)
    assert others_owner(path) == others_owner(link) == "belongs to user 54321"
    assert others_owner(ours) == ""
    link.unlink()
    link.symlink_to(ours)
    os.chown(link, 54321, 54321, follow_symlinks=False)
    assert others_owner(link) == "belongs to user 54321"


@pytest.mark.parametrize(
    ("bits", "says"), [(0o644, ""), (0o646, "all users"), (0o664, "its group")]
)
def test_modes_say_who_may_write(tmp_path, monkeypatch, bits, says):
    monkeypatch.setattr(ownership, "_is_own_group", lambda group: False)
    path = tmp_path / "file"
    path.touch()
    path.chmod(bits)
    assert others_may_write(path) == (says and f"can be written to by {says} (mode {bits:o})")


def test_a_group_of_one_user_is_nobody_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o664)
    monkeypatch.setattr(ownership, "_is_own_group", lambda group: group == path.stat().st_gid)
    assert others_may_write(path) == ""


def test_a_private_folder_is_made_with_its_parents_for_this_user_alone(tmp_path):
    before = os.umask(0)
    try:
        private_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o700
    (tmp_path / "a" / "b").chmod(0o755)  # made by hand, or by an earlier version
    private_folder(tmp_path / "a" / "b")
    assert mode(tmp_path / "a" / "b") == 0o755


@pytest.mark.parametrize("which", [".", "..", "../.."])
def test_a_folder_that_others_can_change_is_refused(tmp_path, which):
    folder = tmp_path / "a" / "b" / "c"
    private_folder(folder)
    (folder / which).resolve().chmod(0o777)
    with pytest.raises(NotTrusted, match=r"can be written to by all users \(mode 777\)"):
        private_folder(folder)


def test_a_sticky_folder_above_is_as_good_as_tmp(tmp_path):
    private_folder(tmp_path / "a" / "b")
    (tmp_path / "a").chmod(0o1777)
    private_folder(tmp_path / "a" / "b")
    (tmp_path / "a" / "b").chmod(0o1777)  # but in it others may write
    with pytest.raises(NotTrusted, match="b can be written to by all users"):
        private_folder(tmp_path / "a" / "b")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
@pytest.mark.parametrize("which", ["a", "a/b", "a/b/file"])
def test_a_folder_of_another_user_or_with_a_file_of_his_is_refused(tmp_path, which):
    private_folder(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "file").touch()
    private_folder(tmp_path / "a" / "b")
    os.chown(tmp_path / which, 54321, 54321)
    with pytest.raises(NotTrusted, match=f"{which}.* belongs to user 54321"):
        private_folder(tmp_path / "a" / "b")


def test_a_folder_of_this_user_is_not_private_to_another(tmp_path, another):
    private_folder(tmp_path / "a")
    another()
    with pytest.raises(NotTrusted, match="belongs to"):
        private_folder(tmp_path / "a")
