"""How long the codecs of a job take here, on one thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from time import perf_counter

import numpy as np

from shoal.codecs import Codec, codec_of, residual_of
from shoal.codecs.named import DELTA
from shoal.errors import InvalidValue
from shoal.runs.job import JobSpec
from shoal.simulation.codec_times import CodecTime
from shoal.strategies.layer_codecs import registered
from shoal.tables.spec import NO_CODECS

COUNT = 1 << 20  # values, more than a core's cache has
TURNS = 5


def codecs_of(job: JobSpec) -> list[Codec]:
    """Return the codecs of a job, of its pushes and of its pulls."""
    codecs = registered(job.codec)
    texts: Iterable[str] = codecs.values() if isinstance(codecs, Mapping) else (codecs,)
    found = {}
    for text in (*texts, job.server_codec.removeprefix(DELTA)):
        if text in NO_CODECS:
            continue
        try:
            codec = codec_of(text)
        except InvalidValue:  # a codec of sums, which is no `Codec`
            continue
        found[str(codec)] = codec
    return [*found.values()]


def measured_times(codecs: Iterable[Codec]) -> dict[str, CodecTime]:
    """Return the median seconds that each codec takes here for a value."""
    values = np.random.default_rng(0).standard_normal(COUNT, np.float32)
    return {str(codec): _measured(codec, values) for codec in codecs}


def times_of(job: JobSpec, times: Mapping[str, CodecTime]) -> dict[str, CodecTime]:
    """Return the times of a job's own codecs; those that are not among `times` take none."""
    names = map(str, codecs_of(job))
    return {name: times[name] for name in names if name in times}


def _measured(codec: Codec, values: np.ndarray) -> CodecTime:
    data, decoded = np.zeros(codec.nbytes(len(values)), np.uint8), np.empty_like(values)
    residual = residual_of(len(values)) if codec.biased else None
    encode_s, decode_s, nbytes = [], [], 0
    for turn in range(1 + TURNS):  # the first one compiles
        begun = perf_counter()
        nbytes = codec.encode(values, data, residual=residual, key=turn)
        half = perf_counter()
        codec.decode(data[:nbytes], decoded)
        if turn:
            encode_s.append(half - begun)
            decode_s.append(perf_counter() - half)
    each = len(values)
    return CodecTime(median(encode_s) / each, median(decode_s) / each, nbytes / each)
