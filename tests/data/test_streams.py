"""Streams: what they hold of a file has a bound, whatever the file holds."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.apps.ctr.formats import guess
from shoal.apps.ctr.readers import Reader
from shoal.apps.word2vec.corpus import Corpus, read_lines
from shoal.apps.word2vec.vectors import pairs_in, questions_in
from shoal.data import streams
from shoal.data.images import read_images
from shoal.data.readers import read_cifar, read_csv, read_idx
from shoal.data.streams import LINE_BYTES_MAX, blocks, lines, opened, pieces
from shoal.errors import DataCorrupt, InvalidValue
from shoal.reports.events import read_events
from shoal.runs.job_file import load_job
from shoal.storage.event_log import NewEvents
from shoal.storage.files import FORMAT, FORMAT_KEY
from tests.data.files import idx

GIB, MIB = 1 << 30, 1 << 20
PEAK_MIB = 160  # of a reader of lines, ten times the longest: far below a bomb's GIB

# -- what is read --------------------------------------------------------------------------------

TEXT = st.lists(st.sampled_from([b"\n", b"\r\n", b" ", b"a", b"bcd", b"\0"]), max_size=40)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of up to 24 bytes, read in blocks of 5."""
    monkeypatch.setattr(streams, "LINE_BYTES_MAX", 24)
    monkeypatch.setattr(streams, "BLOCK_BYTES", 5)


def read(what: Callable[..., Iterator[Any]], content: bytes) -> list[Any]:
    return list(what(Path("name"), io.BytesIO(content)))


@given(TEXT)
def test_blocks_and_lines_and_pieces_have_all_of_a_file(parts: list[bytes]) -> None:
    content = b"".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "LINE_BYTES_MAX", 1000)
        patch.setattr(streams, "BLOCK_BYTES", 5)
        whole = io.BytesIO(content).readlines()
        assert read(lines, content) == list(enumerate(whole, 1))
        assert b"".join(read(pieces, content)) == content
        end = b"" if not content or content.endswith(b"\n") else b"\n"
        assert b"".join(read(blocks, content)) == content + end
        assert all(block.endswith(b"\n") for block in read(blocks, content))


@pytest.mark.parametrize("what", [lines, blocks, pieces])
@pytest.mark.parametrize("before", [b"", b"one\n", b"one\n\n23456\n"])
@pytest.mark.parametrize("after", [b"", b"\n", b"\nmore\n"])
def test_a_line_of_the_bound_is_read_and_a_longer_one_is_named(
    small: None, what: Callable[..., Iterator[Any]], before: bytes, after: bytes
) -> None:
    longest = b"x" * (24 - after.startswith(b"\n"))
    read(what, before + longest + after)
    number = before.count(b"\n") + 1
    with pytest.raises(DataCorrupt, match=f"name: line {number} is longer than 24 bytes"):
        read(what, before + b"xx" + longest + after)


def test_a_long_line_of_words_is_cut_at_a_space(small: None) -> None:
    found = read(pieces, b"one two three four five\nsix seven")
    assert found == [b"one ", b"two ", b"three ", b"four ", b"five\n", b"six ", b"seven"]


# -- gzip ----------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.integers(0, 9))
def test_all_members_of_a_gzip_file_are_read(
    tmp_path_factory: pytest.TempPathFactory, members: list[bytes], padding: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "members"
    path.write_bytes(b"".join(map(gzip.compress, members)) + bytes(padding))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CHUNK_BYTES", 7)
        with opened(path) as file:
            assert file.read() == b"".join(members)


def test_closing_a_stream_closes_its_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"text"))
    with opened(path) as file:
        pass
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.read()


# -- bombs ---------------------------------------------------------------------------------------


MANY = gzip.compress(bytes(MIB)) * 1024  # a gzip file of 1 MiB that holds a GIB of zeros


def in_one_member(before: bytes) -> bytes:
    """The same, after some bytes and with one checksum."""
    member = zlib.compressobj(1, wbits=31)
    head = member.compress(before)
    return head + b"".join(member.compress(bytes(MIB)) for _ in range(1024)) + member.flush()


def packed(before: bytes) -> bytes:
    return gzip.compress(before) + MANY


def tar_head(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.USTAR_FORMAT)


GOOD = {  # two lines of each format
    "ctr.gz": b"1 5\n0 7\n",
    "rows.csv.gz": b"1,2,0\n1,2,1\n",
    "text.gz": b"some words\nmore words\n",
    "questions.gz": b": heading\na b c d\n",
    "pairs.gz": b"a b 1\nb c 2\n",
}


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of some MiB, each of a GIB when it is decompressed, and plain ones with a hole."""
    folder = tmp_path_factory.mktemp("bombs")
    for name, good in GOOD.items():
        (folder / name).write_bytes(packed(good))
        with (folder / name.removesuffix(".gz")).open("wb") as plain:
            plain.write(good)
            plain.truncate(GIB)
    (folder / "rows.csv.gz").write_bytes(in_one_member(GOOD["rows.csv.gz"]))
    (folder / "idx.gz").write_bytes(packed(idx((2, 3, 4))))
    (folder / "cifar.gz").write_bytes(packed(b""))
    (folder / "jpegs.tar.gz").write_bytes(packed(tar_head("train/00001_1.jpg", GIB)))
    (folder / "text.tar.gz").write_bytes(packed(tar_head("a.txt", GIB) + GOOD["text.gz"]))
    (folder / "header.tar.gz").write_bytes(packed(tar_head("pax", GIB, tarfile.XHDTYPE)))
    with (folder / "events.jsonl").open("wb") as log:
        log.write(b'{"%s": %d}\n%s' % (FORMAT_KEY.encode(), FORMAT, EVENT))
        log.truncate(GIB)
    with (folder / "job.toml").open("wb") as job:
        job.truncate(GIB)
    return folder


def words(path: Path) -> None:
    Corpus.of(read_lines([str(path)]), 1)


def rows(path: Path) -> None:
    deque(Reader(path, 2, "dummy", skip=9), maxlen=0)


EVENT = b'{"t": 0.5, "kind": "note", "node": "a"}\n'
READERS: list[tuple[str, Callable[[Path], Any], str, int]] = [
    *((name, reader, "line 3 is longer", PEAK_MIB)
      for plain, reader in (
          ("ctr", rows),
          ("rows.csv", read_csv),
          ("text", words),
          ("questions", lambda path: list(questions_in(path))),
          ("pairs", lambda path: list(pairs_in(path))),
      )
      for name in (plain, f"{plain}.gz")),
    ("text.tar.gz", words, "a.txt: line 3 is longer", PEAK_MIB),
    ("header.tar.gz", words, f"a header of {GIB} bytes", PEAK_MIB),
    ("events.jsonl", lambda path: list(read_events(path)), "line 3 is longer", PEAK_MIB),
    ("job.toml", load_job, "no job file: it has more than 1048576 bytes", PEAK_MIB),
    ("idx.gz", read_idx, "at byte 40: more bytes than shape", PEAK_MIB),
    ("cifar.gz", read_cifar, "longer than 184380000 bytes", 2 * 176),
    ("jpegs.tar.gz", read_images, "longer than 536870912 bytes", 600),
]  # fmt: skip


@pytest.fixture
def peak_mib() -> Iterator[Callable[[], int]]:
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1] // MIB
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "reader", "says", "most_mib"), READERS, ids=[each[0] for each in READERS]
)
def test_a_small_file_that_holds_a_gibibyte_is_named_and_takes_little_memory(
    bombs: Path,
    name: str,
    reader: Callable[[Path], Any],
    says: str,
    most_mib: int,
    peak_mib: Callable[[], int],
) -> None:
    with pytest.raises((DataCorrupt, InvalidValue), match=f"{name}.*{says}"):
        reader(bombs / name)
    assert peak_mib() < most_mib


def test_a_format_is_guessed_within_the_bound(
    tmp_path: Path, bombs: Path, peak_mib: Callable[[], int]
) -> None:
    assert guess(bombs / "ctr.gz") == "dummy"
    path = tmp_path / "zeros.gz"
    path.write_bytes((bombs / "cifar.gz").read_bytes())
    with pytest.raises(DataCorrupt, match=r"zeros\.gz: line 1 is longer"):
        guess(path)
    assert peak_mib() < PEAK_MIB


def test_an_event_log_is_followed_within_the_bound(
    tmp_path: Path, peak_mib: Callable[[], int]
) -> None:
    path = tmp_path / "events.jsonl"
    with path.open("wb") as log:
        log.write(EVENT)
        log.truncate(4 * LINE_BYTES_MAX)
    events = NewEvents(path)
    assert [each["node"] for each in events()] == ["a"]
    for _ in range(5):
        assert events() == []
    with path.open("ab") as log:
        log.write(b"\n" + EVENT)
    assert [each["node"] for each in events() + events()] == ["a"]
    assert peak_mib() < PEAK_MIB


def test_a_text_of_one_line_is_read_in_pieces(tmp_path: Path, peak_mib: Callable[[], int]) -> None:
    path = tmp_path / "text8.gz"  # as that corpus is: 100 MB without a newline
    path.write_bytes(gzip.compress(b"a few words " * (3 * LINE_BYTES_MAX // 12)))
    assert sum(line.count("words") for line in read_lines([str(path)])) == 3 * LINE_BYTES_MAX // 12
    assert peak_mib() < PEAK_MIB
