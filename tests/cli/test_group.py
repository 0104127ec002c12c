"""Options that every command of a cluster has."""

import pytest
from click.testing import CliRunner

from shoal.apps import roles
from shoal.cli import main
from shoal.storage.files import FULL

WORDS = ["scheduler", "--listen", "unix:///nowhere", "--workers", "1", "--servers", "1"]


@pytest.fixture
def scheduler(monkeypatch):
    """Calls `shoal scheduler` with these words; the result, and the token that it was given."""
    given = {}
    monkeypatch.setattr(roles, "run_scheduler", given.update)
    monkeypatch.delenv("SHOAL_TOKEN", raising=False)

    def called(*words, **env):
        given.clear()
        done = CliRunner().invoke(main, [*WORDS, *words], env=env)
        return done, given.get("token")

    return called


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "token"
    path.write_text("the token in a file\n")
    path.chmod(0o600)
    return path


def test_a_token_file_gives_the_token(scheduler, file):
    done, token = scheduler("--token-file", str(file))
    assert (done.exit_code, token) == (0, "the token in a file")
    done, token = scheduler("--token-file", str(file), SHOAL_TOKEN="another token of this user")
    assert token == "the token in a file"


def test_a_token_file_that_others_can_read_is_refused(scheduler, file):
    file.chmod(0o640)
    done, token = scheduler("--token-file", str(file))
    assert done.exit_code == 2
    assert "can be read by other users: chmod 600" in done.output
    assert token is None


def test_a_token_on_the_command_line_is_warned_about(scheduler, file):
    done, token = scheduler("--token", "a token on the line")
    assert token == "a token on the line"
    assert "`ps` shows --token" in done.output
    done, token = scheduler(SHOAL_TOKEN="a token that nobody sees")
    assert (done.output, token) == ("", "a token that nobody sees")
    done, _ = scheduler("--token", "a token on the line", "--token-file", str(file))
    assert "not both" in done.output


@pytest.mark.parametrize("full", FULL)
def test_a_full_disk_is_said_in_a_line(monkeypatch, full):
    def fail(**_):
        raise OSError(full, "no room", "/runs/job.toml")

    monkeypatch.setattr(roles, "run_scheduler", fail)
    done = CliRunner().invoke(main, WORDS)
    assert done.exit_code == 1
    assert done.output == ("no space left for /runs/job.toml: make room, or use another --out\n")
