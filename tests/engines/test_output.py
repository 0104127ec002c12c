"""Logs of processes that are shown as they grow."""

from io import StringIO

import pytest

from shoal.engines import output
from shoal.engines.output import Followed


@pytest.fixture
def followed(tmp_path):
    return Followed({"worker-1": tmp_path / "1.log", "worker-2": tmp_path / "2.log"}, StringIO())


def shown(followed):
    return followed._out.getvalue().splitlines()


def test_whole_lines_are_shown_once_and_the_rest_at_the_end(followed, tmp_path):
    followed.show()  # the logs are not there yet
    with (tmp_path / "1.log").open("w") as one, (tmp_path / "2.log").open("w") as other:
        for text in ("be", "gin\nmo", "re"):
            one.write(text)
            one.flush()
            followed.show()
        assert shown(followed) == ["worker-1 | begin"]
        other.write("\n")
        other.flush()
        followed.show()
        assert shown(followed)[1:] == ["worker-2 | "]
    with followed:
        pass
    assert shown(followed)[2:] == ["worker-1 | more"]


def test_of_a_progress_bar_its_last_state_is_shown(followed, tmp_path):
    (tmp_path / "1.log").write_bytes(b" 0%\r50%\r100%\r\nthen\r\n")
    followed.show()
    assert shown(followed) == ["worker-1 | 100%", "worker-1 | then"]


def test_a_line_may_be_longer_than_what_is_read_at_once(followed, tmp_path, monkeypatch):
    monkeypatch.setattr(output, "READ_BYTES", 8)
    (tmp_path / "1.log").write_bytes(b"one\n" + b"x" * 20 + b"\ntwo\n\xff\n")
    followed.show()
    assert shown(followed) == ["worker-1 | one"]  # no more at once
    for _ in range(4):
        followed.show()
    lines = [each.removeprefix("worker-1 | ") for each in shown(followed)]
    assert lines[0] == "one"
    assert "".join(lines[1:-2]) == "x" * 20
    assert lines[-2:] == ["two", "\ufffd"]
