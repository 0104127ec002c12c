"""Dialects of libsvm: each file is read correctly, or refused by name and line."""

import bz2
import gzip
import lzma

import numpy as np
import pytest
from msgspec.structs import replace

from shoal.apps.ctr.sources import Source, batch_of, check_trainable, to_predict
from shoal.apps.ctr.spec import CtrSpec
from shoal.errors import DataCorrupt
from tests.apps.ctr.reading import rows_of

ROWS = [
    (1, {5: 1, 7: 0.5, 49: 2}),
    (0, {7: 1, 14: 1}),
    (1, {1: 3, 18446744073709551615: -1}),
    (0, {}),
    (0, {2: 0.25}),
]
BLANK, TAB = " ", "\t"


def text_of(rows=ROWS, labels=("0", "1"), between=BLANK, end="\n", before="", behind="", value=str):
    """Rows as libsvm, in a dialect."""
    lines = []
    for label, pairs in rows:
        fields = [f"{key}:{value(number)}" for key, number in pairs.items()]
        first = [labels[label]] if labels else []
        lines.append(between.join([*first, *([before] if before else []), *fields]) + behind)
    return end.join(lines) + end


PLAIN = text_of()
READ = {
    "plain": PLAIN,
    "labels -1 and +1": text_of(labels=("-1", "+1")),
    "labels 1 and 2": text_of(labels=("1", "2")),
    "labels 1.000000": text_of(labels=("0.000000", "1.000000")),
    "labels 1.0 and 2.0": text_of(labels=("1.0", "2.0")),
    "labels 1e0": text_of(labels=("0e0", "1e0")),
    "values 1.000000": text_of(value="{:.6f}".format),
    "values with exponents": text_of(value="{:.8e}".format),
    "tabs": text_of(between=TAB),
    "two blanks and a tab": text_of(between=" \t "),
    "blanks at the end": text_of(behind="  \t"),
    "no-break spaces": text_of(between="\u00a0 "),
    "CRLF": text_of(end="\r\n"),
    "no last newline": PLAIN[:-1],
    "a byte-order mark": "\ufeff" + PLAIN,
    "comments at the end": text_of(behind=" # doc 1:2\t3"),
    "comments without a blank": text_of(behind="#doc"),
    "comments before": "# label 1:2\n# zero-based\n\n" + PLAIN,
    "comments between": PLAIN.replace("\n", "\n  # a comment\n"),
    "qid": text_of(before="qid:17"),
    "qid, tabs and comments": text_of(before="qid:3", between=TAB, behind=" # 4", end="\r\n"),
    "gzip": gzip.compress(PLAIN.encode()),
    "two gzip members": gzip.compress(PLAIN[:20].encode()) + gzip.compress(PLAIN[20:].encode()),
}


def file_of(folder, content, name="rows.libsvm"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("size", [2, 100])
def test_dialects_of_libsvm_are_read(tmp_path, name, size):
    path = str(file_of(tmp_path, READ[name]))
    source = Source(CtrSpec(train=path, batch_size=size), path)
    assert source.kind == "libsvm"
    assert rows_of(source) == [(label, {k: np.float32(v) for k, v in row.items()})
                               for label, row in ROWS]  # fmt: skip
    assert source.skipped == 0


@pytest.mark.parametrize(
    "content",
    [
        text_of(labels=None),
        text_of(labels=None, between=TAB, end="\r\n"),
        text_of(labels=None, before="qid:17"),
        "\ufeff" + text_of(labels=None),
        "# zero-based\n" + text_of(labels=None).replace("\n", "\n\t# 1:2\n"),
        text_of(ROWS[:3], labels=None, behind=" # 1:2") + "\n" + text_of(ROWS[4:], labels=None),
    ],
    ids=["plain", "tabs, CRLF", "qid", "mark", "comments between", "comments at the end"],
)
@pytest.mark.parametrize("options", [{}, {"hash_bits": 9}, {"positive": "2", "negative": "1"}])
def test_dialects_without_labels_are_predicted(tmp_path, content, options):
    spec = CtrSpec(format="libsvm", batch_size=100, **options)
    source = to_predict(spec, str(file_of(tmp_path, content)), "auto", False)
    assert (source.kind, source.labelled) == ("libsvm", False)
    [batch] = source
    [plain] = Source(
        spec,
        str(file_of(tmp_path, text_of(labels=("1", "2") if "positive" in options else ("0", "1")))),
    )
    for name in ("offsets", "keys", "values", "fields"):
        assert getattr(batch, name).tolist() == getattr(plain, name).tolist(), name


REFUSED = {  # content, line, what the error says
    "nothing": ("", None, "no rows"),
    "blank lines": ("\n\r\n \t\n", None, "no rows"),
    "comments alone": ("# one\n  # two\n", None, "no rows"),
    "CR alone": (text_of(end="\r"), 1, r"no line break '\\r' inside it .convert the file: tr"),
    "a line separator": (PLAIN.replace("\n0", "\u20280", 1), 1, r"no line break '\\u2028' inside"),
    "zero bytes at the end": (PLAIN + "\0" * 500, 6, "not zero bytes"),
    "zero bytes inside": (PLAIN.replace("7:0.5", "\0\0\0"), 1, "not zero bytes"),
    "UTF-16": (PLAIN.encode("utf-16"), 1, "UTF-16; convert it to UTF-8"),
    "Latin-1": ("1 3:1\n1 é:1\n".encode("latin-1"), 2, "text in UTF-8, not byte 0xe9"),
    "an instance's weight": (PLAIN.replace("0 7:1", "0:0.5 7:1"), 2, "weights of rows are not"),
    "a value that is missing": (PLAIN.replace("14:1", "14:"), 2, "index:value, not '14:'"),
    "NaN": (PLAIN.replace("14:1", "14:nan"), 2, "index:value, not '14:nan'"),
    "a negative index": (PLAIN.replace("14:1", "-3:1"), 2, "index of 0 or more, not '-3'"),
    "names of features": (PLAIN.replace("14:1", "country=de:1"), 2, "not 'country=de'"),
    "qid behind a feature": (PLAIN.replace("14:1", "qid:3"), 2, "index of 0 or more, not 'qid'"),
    "two qids": ("1 qid:1 qid:2 3:1\n", 1, "index of 0 or more, not 'qid'"),
    "qid of a name": ("1 3:1\n1 qid:a 3:1\n", 2, "index of 0 or more, not 'qid'"),
    "labels of three classes": ("1 3:1\n2 3:1\n3 3:1\n", 2, "not '2'; models have two classes"),
    "a label that comes late": (PLAIN * 20_000 + "2 3:1\n", 100_001, "not '2'; models have two"),
    "label 0 among 1 and 2": (text_of(labels=("1", "2")) * 20_000 + "0 3:1\n", 100_001,
                              "expected a label of 2 or 1, not '0'"),
    "labels 1, 0 and -1": ("1 3:1\n0 3:1\n-1 3:1\n", None, "labels 1, 0 and -1 by line 3:"),
    "Vowpal Wabbit": ("1 |f a5 a7\n-1 |f a7\n", 1, r"index of 0 or more, not '\|f'"),
    "regression": ("0.5 3:1\n", 1, "not '0.5'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_are_refused_by_name_and_line(tmp_path, name):
    content, line, says = REFUSED[name]
    path = str(file_of(tmp_path, content))
    where = "" if line is None else f".*line {line}\\b"
    with pytest.raises(DataCorrupt, match=rf"rows\.libsvm:{where}.*{says}"):
        list(Source(CtrSpec(train=path, batch_size=100_000), path))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (bz2.compress(PLAIN.encode()), "compressed by bzip2"),
        (lzma.compress(PLAIN.encode()), "compressed by xz"),
        (b"PK\x03\x04" + bytes(100), "compressed by zip"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "compressed by zstd"),
        (gzip.compress(PLAIN.encode())[:-4], "at byte [0-9]+: the file ends inside its gzip data"),
    ],
    ids=["bzip2", "xz", "zip", "zstd", "gzip, cut"],
)
def test_packed_files_are_refused_by_name(tmp_path, content, says):
    path = str(file_of(tmp_path, content))
    with pytest.raises(DataCorrupt, match=rf"rows\.libsvm: .*{says}"):
        list(Source(CtrSpec(train=path), path))


@pytest.mark.parametrize("between", [BLANK, TAB])
@pytest.mark.parametrize("comment", ["", " # 7 8"])
def test_dummy_has_tabs_and_comments_too(tmp_path, between, comment):
    lines = [between.join(["2", "3", "7"]), between.join(["1", "4"])]
    path = str(file_of(tmp_path, "".join(f"{line}{comment}\n" for line in lines)))
    source = Source(CtrSpec(train=path), path)
    assert (source.kind, rows_of(source)) == ("dummy", [(1, {3: 1, 7: 1}), (0, {4: 1})])
    bad = str(file_of(tmp_path, "1 3 7\r0 4\r"))
    with pytest.raises(DataCorrupt, match=r"line 1.*no line break '\\r' inside it"):
        list(Source(CtrSpec(train=bad), bad))  # and not one row of 5 features


def test_one_class_against_all_others(tmp_path):
    path = str(file_of(tmp_path, "1 3:1\n2 4:1\n3 5:1\n"))
    for positive, labels in (("1", [1, 0, 0]), ("3.0", [0, 0, 1])):
        found = rows_of(Source(CtrSpec(train=path, positive=positive), path))
        assert [label for label, _ in found] == labels
    with pytest.raises(DataCorrupt, match="line 3: expected a label of 1 or 2, not '3'"):
        list(Source(CtrSpec(train=path, positive="1", negative="2"), path))


@pytest.mark.parametrize("form", ["auto", "libsvm"])
def test_labels_of_the_training_file_hold_for_the_others(tmp_path, form):
    train = str(file_of(tmp_path, "1 3:1\n2 4:1\n"))
    spec = Source(CtrSpec(train=train, format=form), train).described()
    assert (spec.format, spec.positive, spec.negative) == ("libsvm", "2", "1")
    check_trainable(spec, train)
    test = str(file_of(tmp_path, "1 3:1\n1 4:1\n", "test"))
    assert [label for label, _ in rows_of(Source(spec, test))] == [0, 0]
    assert batch_of(spec, ["2 3:1", "1 4:1"]).labels.tolist() == [1, 0]
    usual = replace(spec, positive="", negative="")
    with pytest.raises(DataCorrupt, match="line 2: expected a label of 1, 0 or -1, not '2'"):
        list(Source(usual, train))
