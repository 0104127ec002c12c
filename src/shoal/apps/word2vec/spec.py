"""WordsSpec: what `shoal train word2vec` is asked. Importable without torch."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shoal.jobs.spec import check_replicas


class WordsSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Field names are flags with `-` for `_`."""

    # fmt: off
    texts: Annotated[list[str], Meta(description="text files: plain, .gz, or .tar.gz of them")] = []
    model: Annotated[Literal["skipgram", "cbow"], Meta(description="predict a word from each of its neighbours, or from their mean")] = "skipgram"
    dim: Annotated[int, Meta(ge=1, le=4096, description="elements of a vector")] = 100
    window: Annotated[int, Meta(ge=1, description="neighbours on each side, at most; drawn anew for each word")] = 5
    negative: Annotated[int, Meta(ge=1, description="noise words for each true one")] = 5
    sample: Annotated[float, Meta(ge=0.0, description="frequent words are left out above this share of all (0: none are)")] = 1e-3
    min_count: Annotated[int, Meta(ge=1, description="rarer words are ignored")] = 5
    lr: Annotated[float, Meta(gt=0.0, description="learning rate at the beginning; it falls to --min-lr")] = 0.025
    min_lr: Annotated[float, Meta(ge=0.0, description="... at the end")] = 1e-4
    epochs: Annotated[int, Meta(ge=1, description="passes over the text")] = 5
    block_words: Annotated[int, Meta(ge=100, description="words that a worker trains on between a pull and a push")] = 20000
    threads: Annotated[int, Meta(ge=1, description="lock-free (Hogwild) threads of a worker; 1 is reproducible")] = 1
    workers: Annotated[int, Meta(ge=1, le=1024, description="worker processes")] = 2
    servers: Annotated[int, Meta(ge=1, le=1024, description="server processes")] = 1
    replicas: Annotated[int, Meta(ge=1, le=1024, description="servers that have a copy of each row: one more than may die")] = 1
    seed: Annotated[int, Meta(ge=0, description="of first vectors, windows and noise")] = 1
    analogies: Annotated[str, Meta(description="questions a : b = c : d to answer at the end (the form of questions-words.txt)")] = ""
    similarities: Annotated[str, Meta(description="pairs of words with people's scores, to be compared at the end (the form of wordsim353.tsv)")] = ""
    sync_timeout_ms: Annotated[int, Meta(ge=1, description="after this a wait asks for a resend, after twice this it fails")] = 10000
    transport: Annotated[Literal["unix", "tcp"], Meta(description="between the processes of this machine")] = "unix"
    title: Annotated[str, Meta(max_length=100, description="names the run's folder")] = ""
    out: Annotated[str, Meta(description="where run folders go")] = "shoal-runs"
    # fmt: on

    def __post_init__(self) -> None:
        check_replicas(self.replicas, self.servers)
