"""RoundTrip: the time of acknowledgements, and the time-out for resending."""

from __future__ import annotations


class RoundTrip:
    """The time-out for resending to one server, from the times that acknowledgements took.

    The smoothed time plus four mean deviations, within the limits; see Jacobson and Karels (1988)
    and RFC 6298. After a time-out it doubles, until a message that was sent once is acknowledged:
    it is unknown which copy of a resent message an acknowledgement is for (Karn and Partridge,
    1987). Without this a slow server would get every message several times, and be slower still.

    timeout_s:  the time without an acknowledgement after which messages are resent
    """

    def __init__(self, least_s: float, most_s: float) -> None:
        self.timeout_s = least_s
        self._least_s = least_s
        self._most_s = most_s
        self._mean_s = -1.0  # none was measured yet
        self._deviation_s = 0.0

    def took(self, took_s: float) -> None:
        """Record the round trip of a message that was sent once."""
        if self._mean_s < 0:
            self._mean_s, self._deviation_s = took_s, took_s / 2
        else:
            self._deviation_s += (abs(took_s - self._mean_s) - self._deviation_s) / 4
            self._mean_s += (took_s - self._mean_s) / 8
        self._set(self._mean_s + 4 * self._deviation_s)

    def timed_out(self) -> None:
        """Wait twice as long for the next acknowledgement."""
        self._set(2 * self.timeout_s)

    def _set(self, timeout_s: float) -> None:
        self.timeout_s = min(max(timeout_s, self._least_s), self._most_s)
