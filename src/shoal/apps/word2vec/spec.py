"""WordsSpec: the options of `shoal train word2vec`. Importable without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from shoal.apps.word2vec.tokens import AUTO, check_tokens
from shoal.engines.options import option
from shoal.runs.options import RunOptions, check_backup, need_servers


class WordsSpec(RunOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Field names are flags with `-` for `_`."""

    # fmt: off
    texts: Annotated[tuple[str, ...], option("Data", "text files: plain, .gz, or .tar.gz of them; folders of them, or patterns such as 'books/*.txt'")] = ()
    tokens: Annotated[str, option("Data", "what a word is. space: each token between blanks, as it is; words: letters with their accents, in lower case, cut at punctuation; a language such as fr or tr: words, by its own rules; auto: words for prose in an alphabet with capitals, else space")] = AUTO
    sample: Annotated[float, option("Data", "share of all words above which a frequent word is left out by chance; 0: none is", ge=0.0)] = 1e-3
    min_count: Annotated[int, option("Data", "occurrences below which a word is ignored", ge=1)] = 5
    analogies: Annotated[str, option("Data", "file of questions a : b = c : d to answer at the end, in the form of questions-words.txt")] = ""
    similarities: Annotated[str, option("Data", "file of word pairs with people's scores to compare with at the end, in the form of wordsim353.tsv")] = ""
    model: Annotated[Literal["skipgram", "cbow"], option("Model", "predict a word from each of its neighbours, or from their mean")] = "skipgram"
    dim: Annotated[int, option("Model", "elements of a vector", ge=1, le=4096)] = 100
    window: Annotated[int, option("Training", "neighbours on each side, at most; drawn for each word", ge=1)] = 5
    negative: Annotated[int, option("Training", "noise words for each true one", ge=1)] = 5
    lr: Annotated[float, option("Training", "learning rate at the beginning", gt=0.0)] = 0.025
    min_lr: Annotated[float, option("Training", "learning rate at the end", ge=0.0)] = 1e-4
    epochs: Annotated[int, option("Training", "passes over the text", ge=1)] = 5
    block_words: Annotated[int, option("Training", "words that a worker trains on between a pull and a push", ge=100)] = 20000
    threads: Annotated[int, option("Training", "lock-free (Hogwild) threads of a worker; 1 is reproducible", ge=1)] = 1
    seed: Annotated[int, option("Training", "seed of first vectors, windows and noise", ge=0)] = 1
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        need_servers(self.servers)
        check_backup(self)
        check_tokens(self.tokens)
