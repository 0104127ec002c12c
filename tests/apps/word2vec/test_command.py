"""`--tokens` of a whole run: what is printed, left in its folder, and continued."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import shoal
from shoal.apps.word2vec.command import spec_from
from shoal.apps.word2vec.vectors import Vectors
from shoal.cli import main
from shoal.errors import InvalidValue, UnknownName
from shoal.runs.job_file import load_run_job
from shoal.storage.run_folder import RunFolder

PROSE = "The Cat sat, and the cat ran; in 1914 -- THE END.\n"


def words_of(run):
    return [line.split(" ")[0] for line in (run / "vectors.txt").read_text().splitlines()[1:]]


@pytest.mark.real
@pytest.mark.parametrize(
    ("given", "text", "tokens", "words", "left_out"),
    [
        ((), "17 4 9023 17\n4 17 17 88\n", "space", {"17", "4", "9023", "88"}, {}),
        ((), "हिन्दी भाषा है।\n", "space", {"हिन्दी", "भाषा", "है।"}, {}),
        (
            (), PROSE, "words", {"the", "cat", "sat", "and", "ran", "in", "end"},
            {"numbers": 1, "symbols": 1},
        ),
        (("--tokens", "fr"), "L'eau d’or.\n", "fr", {"l'", "eau", "d'", "or"}, {}),
    ],
)  # fmt: skip
def test_a_run_says_what_a_word_is_and_what_is_left_out(
    given, text, tokens, words, left_out, tmp_path
):
    (tmp_path / "text.txt").write_text(text)
    more = ("--min-count", "1", "--dim", "4", "--epochs", "1", "--workers", "1", "--json")
    ended = subprocess.run(
        [sys.executable, "-m", "shoal", "train", "word2vec", "text.txt", *given, *more],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    said = ended.stderr.splitlines()
    assert said[0].startswith(f"tokens: {tokens}, ")
    assert ("; --tokens " in said[0]) == (not given)  # where it was chosen, how to choose another
    assert said[1].startswith(f"vocabulary: {len(words)} words; left out: ")
    summary = json.loads(ended.stdout.splitlines()[-1])
    assert summary["tokens"] == tokens
    nothing = {"numbers": 0, "symbols": 0, "rare": 0, "rare_words": 0}
    assert summary["left_out"] == nothing | left_out
    run = tmp_path / summary["run_dir"]
    assert set(words_of(run)) == words
    assert load_run_job(run)["tokens"] == tokens
    assert set(Vectors.load(run).words) == words


@pytest.mark.real
def test_a_run_continues_with_the_tokens_that_it_began_with(tmp_path):
    drawn = random.Random(0)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"The {drawn.choice('abc')}, The END.\n" for _ in range(300)))
    asked = {"dim": 4, "workers": 1, "block_words": 200, "min_count": 1, "out": str(tmp_path)}
    first = shoal.word2vec.train(
        text, **asked, tokens="space", checkpoint_every=2, keep_checkpoints=0
    )
    assert "The" in words_of(first.run_dir)  # as it is not in prose that is cut
    for more in ({}, {"tokens": "auto"}, {"tokens": "space"}):
        again = shoal.word2vec.train(
            resume=str(first.run_dir), resume_at=4, out=str(tmp_path), **more
        )
        assert again.metrics["tokens"] == load_run_job(again.run_dir)["tokens"] == "space"
        files = [(each.run_dir / "vectors.bin").read_bytes() for each in (first, again)]
        assert files[0] == files[1]
    with pytest.raises(InvalidValue, match="was trained with --tokens space, which cannot change"):
        shoal.word2vec.train(resume=str(first.run_dir), tokens="words")
    found = CliRunner().invoke(main, ["similar", str(first.run_dir), "END.", "--json"])
    assert {each["word"] for each in json.loads(found.output)} == set(words_of(first.run_dir)) - {
        "END."
    }


def test_a_run_without_tokens_in_its_job_is_of_words(tmp_path):
    RunFolder(tmp_path).write_job('application = "word2vec"\ndim = 4\n')
    assert spec_from({"resume": str(tmp_path)}).tokens == "words"
    assert spec_from({}).tokens == "auto"


@pytest.mark.parametrize(
    ("given", "text", "said"),
    [
        (("--tokens", "th"), "a b", "--tokens th: Thai has no blanks between words"),
        (("--tokens", "vi"), "a b", "--tokens vi: Vietnamese has blanks inside words"),
        (("--tokens", "xx"), "a b", "unknown kind of tokens 'xx' (known: af, "),
        ((), "我爱北京天安门，天安门上太阳升。", "text.txt is in Chinese or Japanese"),
        (("--tokens", "words"), "17 4 17", "left out: 3 numbers); use a longer one, or a lower"),
        (("--tokens", "words"), "17 4 17", "--min-count, or --tokens space"),
        ((), "", "the text has 0 words that come 5 times or more (left out: nothing)"),
        ((), "17 4 17", "left out: 3 tokens of 2 words below --min-count"),
    ],
)
def test_what_has_no_words_is_refused_before_anything_starts(
    given, text, said, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(text)
    ended = CliRunner().invoke(main, ["train", "word2vec", "text.txt", *given])
    assert ended.exit_code == 2
    assert said in " ".join(ended.stderr.split())
    assert not Path("shoal-runs").exists()


def test_a_word_is_looked_up_as_it_is_and_then_as_the_vocabulary_writes_it(tmp_path):
    rows = np.eye(4, dtype=np.float32)
    vectors = Vectors(["The", "the", "été", "17"], rows, "space")
    for word, number in (("The", 0), ("the", 1), ("THE", 1), ("e\u0301te\u0301", 2), ("17", 3)):
        assert np.array_equal(vectors[word], rows[number]), word
    with pytest.raises(UnknownName, match="no word '71'"):
        vectors["71"]
    (tmp_path / "questions.txt").write_text("The the ÉTÉ 17\nTHE the été 18\n")
    assert vectors.analogies(tmp_path / "questions.txt")["questions"] == 1
    (tmp_path / "pairs.txt").write_text("The the 1\nÉTÉ 17 2\nthe the 3\nthe 18 3\n")
    assert vectors.similarities(tmp_path / "pairs.txt")["pairs"] == 3
    turkish = Vectors(["ışık", "işik"], rows[:2, :2], "tr")
    assert np.array_equal(turkish["IŞIK"], rows[0, :2])
