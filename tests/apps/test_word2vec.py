"""Word embeddings: text, the compiled loops beside plain Python, files, questions, a whole run."""

import gzip
import io
import json
import math
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from click.testing import CliRunner

import shoal as shoal_
from shoal.apps.bench.suites.word2vec import beginning
from shoal.apps.word2vec.command import spec_from
from shoal.apps.word2vec.corpus import Corpus, load_ids, read_lines, shares
from shoal.apps.word2vec.model import block_loss, noise_pool, running_sum, subsampled, train_block
from shoal.apps.word2vec.numbering import BREAK
from shoal.apps.word2vec.sample import sample_lines
from shoal.apps.word2vec.vectors import Vectors
from shoal.apps.word2vec.worker import Block
from shoal.cli import main
from shoal.errors import DataCorrupt, DataMissing, InvalidValue, UnknownName
from shoal.storage.run_folder import RunFolder

SHOAL = [sys.executable, "-m", "shoal"]

# ---------------------------------------------------------------------------- text


def test_words_are_numbered_by_frequency_and_rare_ones_left_out(tmp_path):
    corpus = Corpus.of(["b a a", "Don’t a b", "c"], min_count=2)
    assert corpus.words == ["a", "b"]
    assert corpus.counts.tolist() == [3, 2]
    assert corpus.ids.tolist() == [1, 0, 0, BREAK, 0, 1, BREAK, BREAK]
    corpus.save(tmp_path / "c.npz")
    ids, counts = load_ids(tmp_path / "c.npz")
    assert ids.tolist() == corpus.ids.tolist()
    assert counts.tolist() == [3, 2]


def test_a_part_of_a_text_ends_with_a_sentence():
    corpus = Corpus.of(["a b c", "a b", "c a b c"], 1)
    parts = {ids: beginning(corpus, ids).ids for ids in (1, 4, 5, 100)}
    assert [len(part) for part in parts.values()] == [4, 4, 7, len(corpus.ids)]
    assert all(part[-1] == BREAK for part in parts.values())


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_workers_split_the_corpus_into_whole_sentences(workers):
    ids = Corpus.of([f"w{chr(97 + i % 3)} x y z" for i in range(20)], 1).ids
    parts = [ids[part] for part in shares(ids, workers)]
    assert np.concatenate(parts).tolist() == ids.tolist()
    for part in parts:
        assert not len(part) or part[-1] == BREAK


def test_text_is_read_from_plain_gzipped_and_archived_files(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\ntwo\n".encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"three\n"))
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("inside.txt")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"four\n"))
    paths = [str(tmp_path / name) for name in ("a.txt", "b.txt.gz", "c.tar.gz")]
    for each in (paths, [str(tmp_path)], [str(tmp_path / "[ab].*"), paths[2]]):
        assert [line.strip() for line in read_lines(each)] == ["one", "two", "three", "four"]
    with pytest.raises(DataMissing, match=r"no text at .*nowhere"):
        list(read_lines([str(tmp_path / "nowhere.txt")]))
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"x" * 1000)[:20])
    with pytest.raises(DataCorrupt, match=r"d.txt.gz: at byte 20: .*truncated"):
        list(read_lines([str(tmp_path / "d.txt.gz")]))
    (tmp_path / "e.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataCorrupt, match=r"e.txt cannot be read"):
        list(read_lines([str(tmp_path / "e.txt")]))


# ---------------------------------------------------------------------------- the model


def reference(ids, inputs, outputs, pool, window, negative, lr, seed, cbow):
    """`train_block` as one would write it."""
    state, full = seed * 2 + 1, (1 << 64) - 1

    def draw():
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) & full
        return state >> 33

    def against(vector, word):
        change = np.zeros_like(vector)
        for k in range(negative + 1):
            target = pool[draw() & (len(pool) - 1)] if k else word
            if k and target == word:
                continue
            total = vector @ outputs[target]
            if abs(total) < 6:
                step = ((k == 0) - 1 / (1 + math.exp(-total))) * lr
                change += step * outputs[target]
                outputs[target] += step * vector
        return change

    for at, word in enumerate(ids):
        if word < 0:
            continue
        reach = window - draw() % window
        first = last = at
        while first > 0 and at - first < reach and ids[first - 1] >= 0:
            first -= 1
        while last + 1 < len(ids) and last - at < reach and ids[last + 1] >= 0:
            last += 1
        near = [ids[n] for n in range(first, last + 1) if n != at]
        if not near:
            continue
        if cbow:
            change = against(inputs[near].mean(0), word)
            for each in near:
                inputs[each] += change
        else:
            for each in near:
                inputs[each] += against(inputs[each].copy(), word)


@pytest.mark.parametrize("cbow", [False, True], ids=["skipgram", "cbow"])
def test_a_block_is_trained_as_plain_python_would(cbow):
    random = np.random.default_rng(0)
    ids = random.integers(-1, 30, 200).astype(np.int32)
    pool = random.integers(0, 40, 64).astype(np.int32)
    inputs = random.normal(0, 0.3, (30, 8)).astype(np.float32)
    outputs = random.normal(0, 0.3, (40, 8)).astype(np.float32)
    expected = inputs.astype(np.float64), outputs.astype(np.float64)
    reference(ids, *expected, pool, 3, 4, 0.05, 11, cbow)
    train_block(ids, inputs, outputs, pool, 3, 4, 0.05, 11, cbow)
    for found, wanted in zip((inputs, outputs), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-3)  # its sigmoid is a table


def test_training_lowers_the_loss():
    corpus = Corpus.of(list(sample_lines(0))[:2000], 1)
    random = np.random.default_rng(0)
    inputs = random.uniform(-0.05, 0.05, (len(corpus.words), 16)).astype(np.float32)
    outputs = np.zeros_like(inputs)
    pool = noise_pool(running_sum(corpus.counts), 1 << 12, random)
    before = block_loss(corpus.ids, inputs, outputs, pool)
    for seed in range(5):
        train_block(corpus.ids, inputs, outputs, pool, 5, 5, 0.05, seed, False)
    assert before == pytest.approx(6 * math.log(2), rel=1e-3)
    assert block_loss(corpus.ids, inputs, outputs, pool) < 0.7 * before


def test_noise_words_are_drawn_by_counts_to_the_three_quarters():
    counts = np.array([1000, 100, 10])
    drawn = noise_pool(running_sum(counts), 200_000, np.random.default_rng(0))
    expected = counts**0.75 / (counts**0.75).sum()
    np.testing.assert_allclose(np.bincount(drawn) / 200_000, expected, atol=0.005)


def test_frequent_words_are_subsampled_at_the_expected_rate():
    counts = np.array([50_000, 10])
    corpus = Corpus(["a", "b"], counts, np.empty(0, np.int32))
    keep = corpus.keep_chances(1e-3)
    share = 50_000 / (1e-3 * 50_010)
    assert keep.tolist() == pytest.approx([(math.sqrt(share) + 1) / share, 1.0])
    ids = np.array([0] * 50_000 + [BREAK, 1], np.int32)
    kept = subsampled(ids, keep, np.random.default_rng(0))
    assert kept[-2:].tolist() == [BREAK, 1]
    assert (kept == 0).mean() * len(kept) / 50_000 == pytest.approx(keep[0], rel=0.05)


def test_a_block_names_the_rows_that_it_needs():
    text = np.array([7, 3, BREAK, 7, 9], np.int32)
    place = np.full(12, -1, np.int32)
    noise = running_sum(np.array([1] * 12))
    block = Block(text, np.ones(12, np.float32), noise, place, np.random.default_rng(0))
    assert block.words.tolist() == [3, 7, 9]
    assert block.ids.tolist() == [1, 0, BREAK, 1, 2]
    assert set(block.outs[block.pool]) == set(range(12))
    assert (place == -1).all()
    assert block.given == 4


# ---------------------------------------------------------------------------- vectors


@pytest.fixture
def vectors():
    rows = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 1, 1], [5, 5, 0]], np.float32)
    return Vectors(["man", "woman", "king", "queen", "it"], rows)


def test_analogies(vectors, tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text(": family\nman king woman queen\nMan King woman it\nman king nobody queen\n")
    assert vectors.analogies(path) == {"accuracy": 0.5, "right": 1, "questions": 2}
    path.write_text("man king woman\n")
    with pytest.raises(DataCorrupt, match=r"questions.txt, line 1: expected four words"):
        vectors.analogies(path)


def test_similarities(vectors, tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("Word 1\tWord 2\tscore\nman\tking\t9\nking\tqueen\t5\nman\twoman\t1\na\tb\t3\n")
    assert vectors.similarities(path) == {"spearman": 1.0, "pairs": 3, "left_out": 1}
    path.write_text("man\tking\t9\nking\tqueen\tx\n")
    with pytest.raises(DataCorrupt, match="line 2: expected two words and a score"):
        vectors.similarities(path)


def test_vectors_are_written_in_word2vecs_formats(vectors, tmp_path):
    vectors.save(tmp_path / "v.txt", binary=False)
    lines = (tmp_path / "v.txt").read_text().splitlines()
    assert lines[:2] == ["5 3", "man 1 0 0"]
    vectors.save(tmp_path / "v.bin", binary=True)
    data = (tmp_path / "v.bin").read_bytes()
    assert data.startswith(b"5 3\nman " + np.float32([1, 0, 0]).tobytes() + b"\nwoman ")


def test_similar_words(vectors):
    """The angles of all words to a sum of unit vectors."""
    unit = vectors.vectors / np.linalg.norm(vectors.vectors, axis=1, keepdims=True)
    plus, minus, *others = vectors.words
    wanted = unit[0] - unit[1]
    cosines = unit @ wanted / np.linalg.norm(wanted)
    found = vectors.similar(plus, minus=[minus], count=100)
    assert [word for word, _ in found] == sorted(others, key=lambda w: -cosines[vectors.numbers[w]])
    assert dict(found) == pytest.approx({w: cosines[vectors.numbers[w]] for w in others}, abs=1e-6)
    assert vectors.similar(plus.upper(), count=2) == vectors.similar(plus)[:2]
    assert np.array_equal(vectors[plus], vectors.vectors[0])
    for bad in ({"minus": minus}, {"count": 0}, {"count": -1}):
        with pytest.raises(InvalidValue, match="similar takes one word or more"):
            vectors.similar(plus, **bad)
    with pytest.raises(InvalidValue, match="similar takes one word or more"):
        vectors.similar()
    for call in (lambda: vectors.similar("nothing"), lambda: vectors["nothing"]):
        with pytest.raises(UnknownName, match="the vocabulary has no word 'nothing'"):
            call()


# ---------------------------------------------------------------------------- the program


def shoal(*arguments, folder):
    return subprocess.run(
        [*SHOAL, "train", "word2vec", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("model", ["skipgram", "cbow"])
def test_words_of_a_topic_are_near_each_other(model, tmp_path):
    given = ("--model", model, "--dim", "24", "--epochs", "4", "--lr", "0.05", "--json")
    ended = shoal(*given, "--servers", "2", "--block-words", "10000", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout.splitlines()[-1])
    assert summary["words"] > 4 * 200_000
    lines = (tmp_path / summary["run_dir"] / "vectors.txt").read_text().splitlines()
    words = [line.split()[0] for line in lines[1:]]
    rows = np.array([line.split()[1:] for line in lines[1:]], np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    topic = [at for at, word in enumerate(words) if word.startswith("topic")][:60]
    near = (rows[topic] @ rows.T).argsort(1)[:, -4:-1]  # the nearest is the word itself
    same = [
        words[other][:6] == words[at][:6]
        for at, many in zip(topic, near, strict=True)
        for other in many
    ]
    assert np.mean(same) > 0.9


@pytest.mark.real
def test_one_thread_is_reproducible_and_more_threads_train_as_well(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(list(sample_lines(3))[:3000]))
    given = ("text.txt", "--workers", "1", "--dim", "8", "--epochs", "1", "--json")
    found = []
    for more in ((), (), ("--threads", "3")):
        ended = shoal(*given, *more, folder=tmp_path)
        assert ended.returncode == 0, ended.stderr
        run = json.loads(ended.stdout.splitlines()[-1])["run_dir"]
        found.append((tmp_path / run / "vectors.bin").read_bytes())
    assert found[0] == found[1]
    assert len(found[2]) == len(found[0])


@pytest.mark.real
def test_a_run_resumes_exactly_from_its_checkpoint(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(list(sample_lines(3))[:3000]))
    asked = {"workers": 1, "servers": 2, "dim": 8, "epochs": 3, "block_words": 5000}
    text = tmp_path / "text.txt"
    whole = shoal_.word2vec.train(text, **asked, checkpoint_every=4, out=str(tmp_path))
    resumed = shoal_.word2vec.train(resume=str(whole.run_dir), resume_at=8, out=str(tmp_path))
    assert 0 < resumed.metrics["words"] < whole.metrics["words"]
    files = [(each.run_dir / "vectors.bin").read_bytes() for each in (whole, resumed)]
    assert files[0] == files[1]
    ended = shoal_.word2vec.train(resume=str(whole.run_dir), out=str(tmp_path))  # it has all
    assert ended.metrics["words"] == 0
    assert (ended.run_dir / "vectors.bin").read_bytes() == files[0]
    more = shoal_.word2vec.train(resume=str(whole.run_dir), epochs=4, out=str(tmp_path))
    assert more.metrics["words"] == pytest.approx(whole.metrics["words"] / 3, rel=0.01)
    with pytest.raises(InvalidValue, match="has vectors of 8 elements: --dim cannot change"):
        shoal_.word2vec.train(resume=str(whole.run_dir), dim=9)
    text.write_text("\n".join(list(sample_lines(4))[:3000]))
    with pytest.raises(InvalidValue, match="another text: its vocabulary differs"):
        shoal_.word2vec.train(resume=str(whole.run_dir), out=str(tmp_path))
    vectors = Vectors.load(whole.run_dir)
    assert vectors.words == (whole.run_dir / "vocabulary.txt").read_text().split()
    word = vectors.words[5]
    printed = CliRunner().invoke(main, ["similar", str(whole.run_dir), word, "--json"])
    expected = [(word, pytest.approx(cosine)) for word, cosine in vectors.similar(word)]
    assert [(each["word"], each["cosine"]) for each in json.loads(printed.output)] == expected
    unknown = CliRunner().invoke(main, ["similar", str(whole.run_dir), "nothing"])
    assert unknown.exit_code == 2


@pytest.mark.real
def test_a_worker_may_have_no_text(tmp_path):
    """Of one sentence, the first of two workers has all."""
    (tmp_path / "text.txt").write_text("one two " * 50 + "\n")
    ended = shoal_.word2vec.train(tmp_path / "text.txt", workers=2, dim=4, out=str(tmp_path))
    assert sorted(each["words"] > 0 for each in ended.metrics["by_worker"]) == [False, True]


def test_runs_of_other_programs_have_no_words(tmp_path):
    RunFolder(tmp_path).write_job('application = "ctr"\n')
    for call in (lambda: Vectors.load(tmp_path), lambda: spec_from({"resume": str(tmp_path)})):
        with pytest.raises(DataMissing, match="of another run than"):
            call()
    with pytest.raises(InvalidValue, match="nothing"):
        shoal_.word2vec.train(nothing=1)


@pytest.mark.real
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere.txt",), "no text at nowhere.txt"),
        (("short.txt",), "use a longer one, or a lower --min-count"),
        (("short.txt", "--analogies", "none.txt"), "no file none.txt"),
        (("--dim", "0"), "'--dim': 0 is not in the range 1<=x<=4096"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(arguments, words, tmp_path):
    (tmp_path / "short.txt").write_text("too short\n")
    ended = shoal(*arguments, folder=tmp_path)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert not (tmp_path / "shoal-runs").exists()
