"""A text of sentences about topics, made from a seed, to try things out without one's own text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

TOPICS, WORDS, COMMON = 30, 20, 30
SENTENCES, LENGTH = 20_000, 12


def sample_lines(seed: int) -> Iterator[str]:
    """Yield sentences, each with words of one topic (`topicab`, `topicac` ...) and common words."""
    random = np.random.default_rng(seed)
    letters = "abcdefghijklmnopqrstuvwxyzàáâäåæçèéêë"
    topics = [[f"topic{letters[t]}{letters[w]}" for w in range(WORDS)] for t in range(TOPICS)]
    common = [f"common{letters[w]}" for w in range(COMMON)]
    for _ in range(SENTENCES):
        topic = topics[random.integers(TOPICS)]
        mixed = random.random(LENGTH) < 0.6
        yield " ".join(
            topic[min(WORDS - 1, random.zipf(1.4) - 1)] if own else common[random.integers(COMMON)]
            for own in mixed
        )
