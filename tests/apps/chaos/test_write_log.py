"""The log of writes: lost, doubled and made-up updates are found by comparing it with the table."""

from shoal.apps.chaos.write_log import ACKNOWLEDGED, INTENDED, Verdict, judge


def write(folder, *records):
    data = b"".join(what + key.to_bytes(8, "little") for what, key in records)
    (folder / "one.writes").write_bytes(data)


def test_an_acknowledged_write_counts_once_and_an_intended_one_may(tmp_path):
    write(tmp_path, (INTENDED, 1), (ACKNOWLEDGED, 1), (INTENDED, 2), (INTENDED, 3))
    assert judge(tmp_path, {1: 1.0, 2: 1.0, 9: 0.0}) == Verdict(3, 1, 0, 0, 0)


def test_lost_and_repeated_writes_are_counted(tmp_path):
    write(
        tmp_path,
        *((INTENDED, key) for key in range(5)),
        *((ACKNOWLEDGED, key) for key in range(3)),
    )
    held = {0: 0.0, 1: 2.0, 2: 1.0, 3: 2.0, 7: 1.0}
    assert judge(tmp_path, held) == Verdict(
        5, 3, acknowledged_lost=1, acknowledged_doubled=1, strange=2
    )
    assert judge(tmp_path, {}).acknowledged_lost == 3


def test_a_truncated_record_does_not_count(tmp_path):
    write(tmp_path, (INTENDED, 1), (ACKNOWLEDGED, 1))
    path = tmp_path / "one.writes"
    path.write_bytes(path.read_bytes()[:-3])
    assert judge(tmp_path, {}) == Verdict(1, 0, 0, 0, 0)
