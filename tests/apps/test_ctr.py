"""`shoal train ctr`: readers and models."""

import gzip
import threading
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.apps.ctr.formats import PARSERS, bucket, guess, text_of, without_comment
from shoal.apps.ctr.labels import Classes
from shoal.apps.ctr.logistic import gradients_of, logits_of
from shoal.apps.ctr.models import Clicks, model_of
from shoal.apps.ctr.readers import LineOptions, Reader, hashed
from shoal.apps.ctr.scores import Scores, figures
from shoal.apps.ctr.spec import CtrSpec
from shoal.apps.ctr.worker import with_next
from shoal.client.context import Context
from shoal.data import streams
from shoal.errors import DataCorrupt, DataMissing
from shoal.keys import hash_of
from tests.apps.ctr.reading import rows_of

LIBSVM = "1 3:0.5 7:2\n-1 4:1\n\n-1 \n+1 9:-1e-3 18446744073709551615:1\n"
DUMMY = "1 3 7\n0 4\n0\n1 9 18446744073709551615\n"
INTEGERS = ["1", "", "-2", "100", "101", "5", "0", "1", "2", "3", "4", "5", "6"]
CATEGORIES = [f"{number:08x}" for number in range(25)] + [""]
CRITEO = "\t".join(["1", *INTEGERS, *CATEGORIES]) + "\n"


def file_of(folder, text, name="rows.txt"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# ---------------------------------------------------------------------------- readers


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", [1, 2, 100])
def test_libsvm_lines_are_parsed(tmp_path, packed, size):
    path = file_of(tmp_path, LIBSVM)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    reader = Reader(path, size)
    assert reader.kind == "libsvm"
    small = np.float32(-1e-3)
    assert rows_of(reader) == [
        (1, {3: 0.5, 7: 2}),
        (0, {4: 1}),
        (0, {}),
        (1, {9: small, (1 << 64) - 1: 1}),
    ]


def test_lines_of_the_dummy_format_are_parsed(tmp_path):
    reader = Reader(file_of(tmp_path, DUMMY), 2)
    assert reader.kind == "dummy"
    batches = list(reader)
    assert [batch.fields.tolist() for batch in batches] == [[0, 1, 0], [0, 1]]
    assert rows_of(reader)[0] == (1, {3: 1, 7: 1})


def test_criteo_lines_are_parsed(tmp_path):
    reader = Reader(file_of(tmp_path, CRITEO), 2)
    assert reader.kind == "criteo"
    [batch] = reader
    assert len(batch.keys) == 37  # two are missing
    assert batch.fields.tolist() == [0, *range(2, 38)]
    assert len(set(batch.keys.tolist())) == 37  # the column is in the key
    assert (batch.keys[2] ^ batch.keys[3]) == (3 ^ 4) << 40  # 100 and 101: one bucket
    assert bucket(2) != bucket(3)


def test_keys_are_hashed_to_fewer_bits(tmp_path):
    keys = [3, 7, (1 << 64) - 1]
    assert hashed(np.array(keys, np.uint64), 10).tolist() == [hash_of(k) >> 54 for k in keys]
    reader = Reader(file_of(tmp_path, DUMMY), 100, options=LineOptions(hash_bits=10))
    assert all(key < 1024 for _, row in rows_of(reader) for key in row)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_share_the_rows(tmp_path, workers):
    path = file_of(tmp_path, "".join(f"1 {number}\n" for number in range(100)))
    seen = []
    for rank in range(workers):
        seen += [key for _, row in rows_of(Reader(path, 8, share=(rank, workers))) for key in row]
    assert sorted(seen) == list(range(100))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("1 3:1\n2 3:1\n", 2, "label of 1, 0 or -1, not '2'"),
        ("1 3:1\n1 3:x\n", 2, "index:value, not '3:x'"),
        ("1 3:1\n1 3\n", 2, "index:value, not '3'"),
        ("1 3:1\n1 3:nan\n", 2, "index:value"),
        ("1 3:1\n1 3:1e39\n", 2, "index:value"),
        ("1 3:1\n1 3:1_0\n", 2, "index:value"),
        ("1 3:1\n1 -3:1\n", 2, "index of 0 or more"),
        ("1 3\n\n1 18446744073709551616\n", 3, r"index below 2\*\*64, not 18446744073709551616"),
        (b"1 3:1\n1 \xff3:1\n", 2, "text in UTF-8, not byte 0xff at 3"),
        ("1 3:1\n1 3:1 # a\r1 4:1\n", 2, "no line break"),
        ("1 3:1\n# a\r1 4:1\n", 2, "no line break"),
        (b"1 3:1\n1 3:1 # \xff\n", 2, "text in UTF-8"),
        (CRITEO + CRITEO.replace("\t00000003", ""), 2, "40 fields, not 39"),
        (CRITEO + CRITEO.replace("\t100\t", "\tx\t"), 2, "integer in field 4"),
        (CRITEO + CRITEO.replace("00000003", "0x1f"), 2, "hexadecimal digits in field 17"),
        (CRITEO + CRITEO.replace("00000003", "xyz"), 2, "hexadecimal digits in field 17"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, text, line, says):
    path = file_of(tmp_path, text)
    with pytest.raises(DataCorrupt, match=f"rows.txt: line {line}: expected.*{says}"):
        list(Reader(path, 10))
    reader = Reader(path, 10, skip=1)
    assert len(rows_of(reader)) == 1
    assert reader.skipped == 1
    path.write_bytes(path.read_bytes() + path.read_bytes().split(b"\n")[-2] + b"\n")
    with pytest.raises(DataCorrupt):
        list(Reader(path, 10, skip=1))


TOKENS = st.one_of(
    st.sampled_from(["1", "0", "-1", "+1", "1.0", "-1.0", "+0", "2", "", " ", "\t", "x", "é"]),
    st.sampled_from(
        ["1.000000", "2.", ".0", "qid:3", "qid:", "qid:a", "#", "#1", "3:1#2", "\r", "#é"]
    ),
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.tuples(
        st.integers(0, 1 << 65),
        st.floats(-1e6, 1e6).map(lambda x: f"{x:.6f}")
        | st.floats().map(repr)
        | st.sampled_from(["1", "-.5", "+7.", "1_0", ".", "--1", "12345678901234567890.5"]),
    ).map(lambda pair: f"{pair[0]}:{pair[1]}"),
    st.integers(0, 1 << 70).map(lambda x: f"{x:x}"),
)
LINES = st.one_of(
    st.lists(TOKENS, max_size=5).map(" ".join),
    st.tuples(
        st.sampled_from(["1", "0", "-1"]), st.lists(TOKENS, max_size=4), st.sampled_from(" \t")
    ).map(lambda parts: parts[2].join([parts[0], *parts[1]])),
    st.lists(
        st.sampled_from(["", "1", "-3", "77", "0", "123456", "9" * 16, "ab", "68fd1e64", "F" * 11]),
        min_size=39, max_size=40,
    ).map(lambda fields: "\t".join(["1", *fields])),
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@example(lines=["#é"], end="\n", kind="libsvm", size=1, named=Classes())
@given(
    lines=st.lists(LINES, max_size=12),
    end=st.sampled_from(["\n", "\r\n"]),
    kind=st.sampled_from(["libsvm", "dummy", "criteo"]),
    size=st.integers(1, 5),
    named=st.sampled_from([Classes(), Classes(2), Classes(2, 1), Classes(-1)]),
)
def test_the_compiled_parser_equals_the_plain_one(lines, end, kind, size, named, tmp_path_factory):
    """Each line is what the parser of a single line makes of it, or refused like it."""
    expected, refused, classes = [], 0, set()
    for line in lines:
        try:
            text = text_of(f"{line}{end}".encode())
            if not (text if kind == "criteo" else without_comment(text)).strip():
                continue
            label, keys, values = PARSERS[kind](text)
            label = named.of(label)
        except ValueError:
            refused += 1
            continue
        classes.add(label)
        values = [np.float32(x) for x in values or [1] * len(keys)]
        expected.append((label > 0, keys, values))
    path = tmp_path_factory.mktemp("lines") / "rows.txt"
    path.write_bytes(end.join(lines).encode())
    reader = Reader(path, size, kind, LineOptions(classes=named), skip=1000)
    if not (refused or classes):
        with pytest.raises(DataCorrupt, match="no rows"):
            list(reader)
        return
    if {0, -1} <= classes:
        with pytest.raises(DataCorrupt, match="labels 1, 0 and -1 by line"):
            list(reader)
        return
    found = []
    for batch in reader:
        assert len(batch) <= size
        ends = [*batch.offsets[1:], len(batch.keys)]
        for label, start, stop in zip(batch.labels, batch.offsets, ends, strict=True):
            found.append((label, batch.keys[start:stop].tolist(), list(batch.values[start:stop])))
    assert found == expected
    assert reader.skipped == refused


def test_a_row_longer_than_a_block_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "BLOCK_BYTES", 7)
    text = "1 123456789:0.5 7:2\n\n-1 4:1e2"
    path = file_of(tmp_path, text)
    assert rows_of(Reader(path, 2)) == [(1, {123456789: 0.5, 7: 2}), (0, {4: 100})]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no rows"),
        ("\n\n", "no rows"),
        ("hello world\n", r"neither libsvm, dummy nor criteo \(line 1 is no row of dummy"),
        ("\n1 a:b\n", r"\(line 2 is no row of libsvm: expected an index of 0 or more, not 'a'"),
        ("\x00\x01\n", "neither libsvm"),
        ("1 18446744073709551616:1\n", r"index below 2\*\*64"),
    ],
)
def test_a_file_of_another_format_is_refused(tmp_path, text, says):
    with pytest.raises(DataCorrupt, match=rf"rows\.txt: .*{says}"):
        list(Reader(file_of(tmp_path, text), 10))


def test_a_first_line_that_is_malformed_may_be_skipped(tmp_path):
    reader = Reader(file_of(tmp_path, b"\xff\n1 3:1\n"), 10, skip=1)
    assert (reader.kind, rows_of(reader), reader.skipped) == ("libsvm", [(1, {3: 1})], 1)


@pytest.mark.parametrize("size", [1, 100])
def test_labels_of_three_classes_are_refused(tmp_path, size):
    path = file_of(tmp_path, "1 3:1\n0 4:1\n1e0 5:1\n-1 6:1\n")
    with pytest.raises(DataCorrupt, match="labels 1, 0 and -1 by line 4"):
        list(Reader(path, size, skip=1))


def test_an_unreadable_file_is_refused(tmp_path):
    with pytest.raises(DataMissing, match=r"none\.txt"):
        guess(tmp_path / "none.txt")
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(DUMMY.encode() * 1000)[:-20])
    with pytest.raises(DataCorrupt, match=r"cut\.gz"):
        list(Reader(path, 10))
    path.write_bytes(b"\xff\xfe\xfa\n")
    with pytest.raises(DataCorrupt, match=r"cut\.gz"):
        guess(path)


# ---------------------------------------------------------------------------- models


@pytest.mark.real
def test_a_factorisation_machine_is_the_sum_over_all_pairs(cluster, tmp_path):
    """Rendle 2010, equation 1, against the linear-time form."""
    _, [client] = cluster()
    reader = Reader(file_of(tmp_path, "1 3:0.5 7:2 9:1\n0 4:1\n1\n0 3:1 4:-1\n"), 10)
    [batch] = reader
    model = Clicks(CtrSpec(model="fm", factors=3), Context(0, 1, client))
    keys = [3, 4, 7, 9]
    client.push("bias", torch.tensor([[0.25]]), keys=[0], assign=True).wait()
    client.push("linear", torch.tensor([[1.0], [2], [3], [4]]), keys=keys, assign=True).wait()
    factors = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    client.push("factors", factors, keys=keys, assign=True).wait()
    linear = dict(zip(keys, (1.0, 2.0, 3.0, 4.0), strict=True))
    vectors = dict(zip(keys, factors, strict=True))
    expected = [
        0.25
        + sum(linear[key] * x for key, x in row.items())
        + sum(float(vectors[a] @ vectors[b]) * row[a] * row[b] for a, b in combinations(row, 2))
        for _, row in rows_of(reader)
    ]
    torch.testing.assert_close(model(batch).detach(), torch.tensor(expected))


@pytest.mark.real
def test_deepfm_sees_the_fields_in_their_places(cluster, tmp_path):
    _, [client] = cluster()
    [batch] = Reader(file_of(tmp_path, "1 3 7 9\n0 4\n"), 10)
    model = Clicks(CtrSpec(model="deepfm", factors=2, fields=2), Context(0, 1, client))
    seen = []
    model.deep.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    model(batch)
    rows = {key: client.pull("factors", keys=[key]).wait()[0] for key in (3, 7, 4)}
    expected = torch.stack([torch.cat([rows[3], rows[7]]), torch.cat([rows[4], torch.zeros(2)])])
    torch.testing.assert_close(seen[0], expected)


def test_logistic_gradients_equal_autograds():
    random = np.random.default_rng(0)
    numbers = random.integers(0, 7, 20).astype(np.uint64)
    offsets, labels = np.array([0, 4, 4, 11]), np.array([1, 0, 1, 0], np.float32)
    values, weights = (random.normal(size=size).astype(np.float32) for size in (20, 7))
    logits, gradients = np.empty(4, np.float32), np.zeros(7, np.float32)
    logits_of(weights, 0.25, numbers, values, offsets, logits)
    loss, slope = gradients_of(logits, labels, numbers, values, offsets, gradients)
    leaf, bias = torch.tensor(weights, requires_grad=True), torch.tensor(0.25, requires_grad=True)
    ends = [*offsets[1:], 20]
    rows = [slice(start, stop) for start, stop in zip(offsets, ends, strict=True)]
    expected = torch.stack(
        [bias + leaf[numbers[row].astype(int)] @ torch.from_numpy(values[row]) for row in rows]
    )
    total = torch.nn.functional.binary_cross_entropy_with_logits(
        expected, torch.from_numpy(labels), reduction="sum"
    )
    total.backward()
    torch.testing.assert_close(torch.from_numpy(logits), expected.detach())
    torch.testing.assert_close(torch.from_numpy(gradients), leaf.grad)
    torch.testing.assert_close(
        torch.tensor([loss, slope]), torch.stack([total, bias.grad]).detach()
    )


@pytest.mark.real
def test_synchronous_workers_equal_one_process_with_all_rows(cluster, tmp_path):
    """FTRL-proximal, McMahan et al. 2013, algorithm 1, to 1e-6."""
    spec = CtrSpec(strategy="sync", l1=0.6, l2=0.5, batch_size=5)
    random = np.random.default_rng(3)
    text = "".join(
        f"{random.integers(2)} {' '.join(map(str, random.choice(12, 4, replace=False)))}\n"
        for _ in range(60)
    )
    path = file_of(tmp_path, text)
    _, clients = cluster(workers=2)

    def train(rank):
        model = model_of(spec, Context(rank, 2, clients[rank]))
        for batch, following in with_next(Reader(path, 5, share=(rank, 2))):
            model.learn(batch, following)
        clients[rank].advance(last=True).wait()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    z, n, w = (np.zeros(13) for _ in range(3))  # the bias is the last
    l1, l2 = (np.array([penalty] * 12 + [0.0]) for penalty in (spec.l1, spec.l2))
    for batch in Reader(path, 10):
        gradients = np.zeros(13)
        for label, row in zip(batch.labels, batch.keys.reshape(-1, 4).astype(int), strict=True):
            active = [*row, 12]
            gradients[active] += 1 / (1 + np.exp(-w[active].sum())) - label
        seen = [*np.unique(batch.keys).astype(int), 12]
        g = gradients[seen]
        sigma = (np.sqrt(n[seen] + g**2) - np.sqrt(n[seen])) / spec.lr
        z[seen] += g - sigma * w[seen]
        n[seen] += g**2
        rate = (spec.beta + np.sqrt(n[seen])) / spec.lr + l2[seen]
        shrunk = np.sign(z[seen]) * np.maximum(np.abs(z[seen]) - l1[seen], 0)
        w[seen] = -shrunk / rate
    found = clients[0].pull("linear", keys=np.arange(12)).wait()[:, 0]
    bias = clients[0].pull("bias", keys=[0]).wait()[0, 0]
    np.testing.assert_allclose([*found.tolist(), float(bias)], w, rtol=0, atol=1e-6)
    assert (w == 0).any()


def test_non_finite_scores_have_no_metrics(tmp_path):
    scores = Scores()
    scores.add(np.array([0.5, np.nan], np.float32), np.array([1, 0], np.float32))
    scores.save(tmp_path / "scores.npz")
    assert figures([tmp_path / "scores.npz"]) == {"auc": None, "log_loss": None}
