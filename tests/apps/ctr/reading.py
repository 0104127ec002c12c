"""What tests read of batches."""


def rows_of(batches):
    """[(label, {key: value})] of all batches."""
    rows = []
    for batch in batches:
        ends = [*batch.offsets[1:], len(batch.keys)]
        for label, start, stop in zip(batch.labels, batch.offsets, ends, strict=True):
            pairs = zip(batch.keys[start:stop].tolist(), batch.values[start:stop], strict=True)
            rows.append((int(label), dict(pairs)))
    return rows
