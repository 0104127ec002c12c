"""Blocking: a client's operations, waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from shoal.protocol.requests import Exchange
from shoal.runtime.exchanges import Exchanges
from shoal.runtime.reducing import reduce_of


class Blocking:
    """The client's operations, waited for: `client.blocking.pull("w")` is the tensor.

    Faster than `client.pull("w").wait()`: nobody else is told that there is work.
    """

    def __init__(self, run: Callable[..., Any], exchanges: Exchanges) -> None:
        self._run = run
        self._exchanges = exchanges

    def push(self, *args: Any, **options: Any) -> None:
        self._run(self._exchanges.push(*args, **options))

    def pull(self, *args: Any, **options: Any) -> Any:
        return self._run(*self._exchanges.pull(*args, **options))

    def request(self, group: str, head: int, body: bytes = b"", *, table: str) -> list[bytes]:
        answers: list[bytes] = self._run(*self._exchanges.request(table, group, head, body))
        return answers

    def push_pull(self, *args: Any, **options: Any) -> Tensor:
        rows: Tensor = self._run(*self._exchanges.push_pull(*args, **options))
        return rows

    def advance(self, *, last: bool = False) -> None:
        self._run(Exchange(advance=True, last=last))

    def all_reduce(self, tensor: Tensor, *, mean: bool = False) -> None:
        self._run(reduce_of(tensor, mean))
