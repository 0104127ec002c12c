"""Courses from events: times without evaluations, bytes of all workers, means over samples."""

import pytest

from shoal.reports.curves import POINTS, Curves, Point, curves_of


def event(kind, rank, t, **fields):
    return {"t": t, "kind": kind, "node": f"worker-{rank}", **fields}


def step(rank, t, number, loss, **fields):
    usual = {"samples": 10, "staleness": 0, "idle_s": 0.0, "bytes_sent": 0, "bytes_received": 0}
    return event("step", rank, t, step=number, epoch=0, loss=loss, **{**usual, **fields})


EVENTS = [
    {"t": 0.0, "kind": "view", "node": "scheduler"},
    event("begin", 0, 1.0, batches=2, weights="aa"),
    event("begin", 1, 2.0, batches=2, weights="bb"),
    step(0, 2.0, 1, 4.0, bytes_sent=100, bytes_received=20, idle_s=0.5),
    step(1, 4.0, 1, 2.0, bytes_sent=100, bytes_received=20, staleness=1),
    event("eval", 0, 5.0, step=1, epoch=0, accuracy=0.5, loss=1.5, seconds=2.0),
    step(0, 6.0, 2, 1.0, bytes_sent=200, bytes_received=40, idle_s=1.5),
    event("eval", 0, 9.0, step=2, epoch=-1, accuracy=0.75, loss=None, seconds=3.0),
    event("eval", 1, 9.0, step=2, epoch=-1, accuracy=0.75, loss=0.5, seconds=3.0),
]


def test_what_events_say():
    found = curves_of(EVENTS)
    assert found.loss == [
        Point(1, 1.0, 120, 4.0),
        Point(1, 2.0, 240, 2.0),
        Point(2, 3.0, 360, 1.0),  # 6 - 1 - 2 of the evaluation
    ]
    assert found.accuracy == [Point(1, 2.0, 240, 0.5), Point(2, 3.0, 360, 0.75)]
    assert found.test_loss[0].value == 1.5
    assert found.idle == {0: pytest.approx(0.5), 1: 0.0}
    assert found.staleness == {0: 2, 1: 1}
    assert (found.seconds, found.bytes, found.weights) == (3.0, 360, "aa")


def test_what_comes_after_the_last_step_counts():
    """The last exchange, of a strategy that exchanges at the end."""
    end = event("end", 0, 7.0, idle_s=2.5, bytes_sent=900, bytes_received=100)
    found = curves_of([*EVENTS[:-2], end])
    assert (found.seconds, found.bytes) == (4.0, 1000 + 120)
    assert found.idle[0] == pytest.approx(2.5 / 4.0)


def test_a_worker_that_replaces_another_goes_on_from_where_it_was():
    before = [event("begin", 0, 0.0, batches=9), step(0, 2.0, 1, 1.0, bytes_sent=10, idle_s=1.0)]
    evaluated = event("eval", 0, 8.0, step=1, epoch=0, accuracy=0.5, loss=1.0, seconds=6.0)
    after = [event("begin", 0, 20.0, batches=9), step(0, 23.0, 2, 1.0, bytes_sent=5, idle_s=1.0)]
    found = curves_of([*before, evaluated, *after])
    assert (found.seconds, found.bytes, found.idle[0]) == (5.0, 15, pytest.approx(0.4))


def test_events_may_come_in_another_order():
    assert curves_of(EVENTS[::-1]).loss == curves_of(EVENTS).loss


def test_a_run_without_steps_has_no_courses():
    assert curves_of(EVENTS[:3]) == Curves(weights="aa")
    assert curves_of([]) == Curves()


def test_against_steps_losses_are_means_of_steps_of_like_number():
    """Worker 1 is slower: at a time the two are at unlike steps."""
    begun = [event("begin", rank, 0.0, batches=4) for rank in (0, 1)]
    quick = [step(0, 1.0 * number, number, 8.0 - number) for number in range(1, 5)]
    slow = [step(1, 3.0 * number, number, 10.0 - number, samples=30) for number in range(1, 5)]
    found = curves_of([*begun, *quick, *slow])
    assert [(p.step, p.value) for p in found.loss_by_step] == [
        (1, 8.5),
        (2, 7.5),
        (3, 6.5),
        (4, 5.5),
    ]
    assert [point.seconds for point in found.loss_by_step] == [3.0, 6.0, 9.0, 12.0]
    over_time = [point.step for point in found.loss]
    assert over_time != sorted(over_time)


def test_long_courses_against_steps_have_few_points():
    begun = [event("begin", rank, 0.0, batches=601) for rank in (0, 1)]
    steps = [step(rank, 1.0, n, float(n), samples=1) for rank in (0, 1) for n in range(5, 606)]
    found = curves_of([*begun, *steps]).loss_by_step
    assert len(found) == POINTS
    assert [point.value for point in found] == [point.step for point in found]
    assert found[0].step == 10.0  # of 5 to 15
    assert found[-1].step == 600.5


def test_times_of_workers_that_evaluate_run_forwards():
    """Worker 0 has evaluated for 3 s: a later step of it is at an earlier time of training."""
    begun = [event("begin", rank, 0.0, batches=4) for rank in (0, 1)]
    evaluated = event("eval", 0, 4.0, step=1, epoch=0, accuracy=0.5, loss=1.0, seconds=3.0)
    steps = [step(1, 4.5, 1, 1.0), step(0, 5.0, 2, 3.0)]
    assert [point.seconds for point in curves_of([*begun, evaluated, *steps]).loss] == [2.0, 4.5]


def test_long_courses_are_means_over_samples():
    """1,200 steps of falling losses: each point has as many samples, and their mean."""
    steps = [step(0, number / 10, number, 1200.0 - number) for number in range(1200)]
    found = curves_of([event("begin", 0, 0.0, batches=1200), *steps]).loss
    assert len(found) == POINTS
    width = 1200 // POINTS
    for number, point in enumerate(found):
        middle = number * width + (width - 1) / 2
        assert point.value == pytest.approx(1200 - middle)
        assert point.step == pytest.approx(middle)
