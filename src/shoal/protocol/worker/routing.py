"""Routing: cuts exchanges along shards, one message per server.

A router belongs to one view. Training repeats the same exchanges, so that the router caches its
result in the exchange. Exchanges of the same whole ranges share a plan (which bytes of which
operation go to which server).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from shoal.errors import InvalidValue
from shoal.keys import KeyRange, digest128, slot_of
from shoal.protocol.layout import Layout
from shoal.protocol.limits import KEYS_MAX, PARTS_ASKED_MAX, REPEATS_MAX
from shoal.protocol.messages.base import SAME, Part
from shoal.protocol.namespaces import qualified
from shoal.protocol.requests import Answer, Exchange, PullOp, PushOp, Scan
from shoal.protocol.views import NodeId, View
from shoal.protocol.worker.repeats import check_repeats
from shoal.protocol.worker.server_part import ServerPart, SubRequestPlan
from shoal.protocol.worker.slot_order import in_slot_order
from shoal.tables.consistency import asp

PLANS_KEPT = 256
Cut = tuple[int, int, int]  # (operation, first byte, last byte)


class Plan(msgspec.Struct):
    """The cuts that all exchanges of the same shape share."""

    pushed: tuple[int, ...]
    pulled: tuple[int, ...]
    closing: bool
    servers: list[_Server]


class _Server(msgspec.Struct):
    server: NodeId
    pushes: list[Part] = []
    pulls: list[Part] = []
    push_cuts: list[Cut] = []
    pull_cuts: list[Cut] = []
    key_cuts: list[tuple[int, int, int]] = []  # of pulls: (operation, first key, last key)


class Router:
    """Cuts exchanges for one view, for a worker of a group, with names of its namespace."""

    def __init__(self, view: View, group: str = "", namespace: str = "") -> None:
        self.view = view
        self._group = group
        self.view_id = view.id
        self.numbers = {
            name: number
            for number, spec in enumerate(view.tables)
            for name in (spec.name, "/" + qualified(spec.name, namespace))
        }
        self._layouts = [Layout(spec) for spec in view.tables]
        self._at = {member.rank: at for at, member in enumerate(view.servers)}
        self._routes: dict[tuple[int, KeyRange, bool], list[tuple[int, KeyRange]]] = {}
        self._plans: dict[tuple[object, ...], Plan] = {}

    def sub_requests(self, ask: Exchange) -> tuple[SubRequestPlan, ...]:
        """Return the sub-requests of an exchange in order: one, or the push and then the rest.

        The exchange keeps them in `route`, for as long as this router is that of the view.
        """
        steps = [(ask.pushes, (), False), ((), ask.pulls, ask.advance)]
        if self.rides(ask):
            steps = [(ask.pushes, ask.pulls, ask.advance)]
        sub_requests = tuple(self._sub_request(ask, *step) for step in steps)
        ops: tuple[PushOp | PullOp, ...] = (*ask.pushes, *ask.pulls)
        if all(op.keys is None for op in ops):  # the caller may change keys in place
            msgspec.structs.force_setattr(ask, "route", (self, sub_requests))
        return sub_requests

    def _sub_request(
        self, ask: Exchange, pushes: Sequence[PushOp], pulls: Sequence[PullOp], advances: bool
    ) -> SubRequestPlan:
        plan, server_parts = self.cut(pushes, pulls, advances)
        closing = plan.closing and not ask.assign
        return SubRequestPlan(plan.pushed, plan.pulled, closing, advances, server_parts)

    def rides(self, ask: Exchange) -> bool:
        """Return whether push, advance and pull may be sent in one message per server.

        They may not if the push assigns rows. They may not if the push is applied at the end of its
        round, except under BSP with one server: all servers have to accept the push before one of
        them learns that the worker has finished the round. They may not if the tails that answer
        the pull are other servers than the heads that take the push.
        """
        if not ask.pushes or not (ask.advance or ask.pulls):
            return True
        if ask.assign:
            return False
        rules = [self.view.tables[self._number(op.table)].consistency for op in ask.pushes]
        closing = [rule for rule in rules if rule.apply_at == "round_end"]
        if ask.pulls and any(rule.name != "asp" for rule in rules) and self._chained(ask.pushes):
            return False
        alone = len(self.view.servers) == 1
        return not closing or (alone and all(rule.name == "bsp" for rule in closing))

    def _chained(self, pushes: Sequence[PushOp]) -> bool:
        placements = (
            placement for op in pushes for placement in self.view.placements[self._number(op.table)]
        )
        return any(len(placement.in_sync) > 1 for placement in placements)

    def cut(
        self, pushes: Sequence[PushOp], pulls: Sequence[PullOp], everybody: bool
    ) -> tuple[Plan, list[ServerPart]]:
        """Return the plan and each server's part; with `everybody` also of servers without rows.

        Raises:
            InvalidValue: an unknown table, rows that it does not have, or a buffer of another size.
        """
        if any(map(self._unordered, pushes)) or any(map(self._unordered, pulls)):
            self._check_buffers(pushes, pulls)
            pushes, pulls = in_slot_order(pushes, pulls, self._unordered)
        plan = self._plan(pushes, pulls, everybody)
        self._check_buffers(pushes, pulls)
        server_parts, rated = [], any(op.lr is not None for op in pushes)
        encoded = any(op.sizes for op in pushes)
        for each in plan.servers:
            buffers = self._pushed(pushes, each)
            spared, sizes = self._encoded(pushes, each, buffers) if encoded else (0, ())
            for index, first, last in each.key_cuts:
                keys = pulls[index].keys
                assert keys is not None
                buffers.append(keys[first:last].cast("B"))
            outs, answers, pulled = self._pulled(pulls, each)
            nbytes, nbytes_out = spared, -1 if answers else 0
            for buffer in buffers:
                nbytes += buffer.nbytes
            for out in outs:
                nbytes_out += out.nbytes
            server_parts.append(
                ServerPart(
                    each.server,
                    tuple(each.pushes),
                    tuple(each.pulls),
                    tuple(buffers),
                    outs,
                    nbytes,
                    nbytes_out,
                    answers,
                    tuple(pushes[index].lr for index, _, _ in each.push_cuts) if rated else (),
                    sizes,
                    pulled if any(pulled) else (),
                )
            )
        if any(map(self._caches, pushes)) or any(map(self._caches, pulls)):
            server_parts = [self._with_lists(each) for each in server_parts]
        return plan, server_parts

    def _caches(self, op: PushOp | PullOp) -> bool:
        """Return whether servers keep the keys of an operation."""
        if op.keys is None:
            return False
        return self.view.tables[self._number(op.table)].key_lists == "cached"

    def _with_lists(self, server_part: ServerPart) -> ServerPart:
        """Return a server's part with the digests of its lists of keys."""
        keyed = [part for part in (*server_part.pushes, *server_part.pulls) if part.keys >= 0]
        lists = []
        for part, at in zip(keyed, server_part.key_buffers(), strict=True):
            cached = part.keys and self.view.tables[part.table].key_lists == "cached"
            lists.append(digest128(server_part.buffers[at]) if cached else b"")
        return msgspec.structs.replace(server_part, lists=tuple(lists))

    def _pulled(
        self, pulls: Sequence[PullOp], server_part: _Server
    ) -> tuple[list[memoryview], tuple[Answer, ...], tuple[tuple[int, ...], ...]]:
        """Return the destinations of pulled rows or answers, and the sizes of encoded fragments."""
        outs: list[memoryview] = []
        answers: list[Answer] = []
        sizes: list[tuple[int, ...]] = []
        for index, first, last in server_part.pull_cuts:
            pull, encoded = pulls[index], _RAW
            layout = self._layouts[self.numbers[pull.table]]
            if pull.sizes and pull.keys is not None and isinstance(pull.out, memoryview):
                [size] = encoded = pull.sizes
                one, other = layout.rows(first, last)
                outs.append(pull.out[one * size : other * size])
            elif pull.sizes and isinstance(pull.out, memoryview):
                start, stop, encoded = layout.encoded_span(pull.rows, pull.sizes, first, last)
                outs.append(pull.out[start:stop])
            elif isinstance(pull.out, memoryview):
                outs.append(pull.out[first:last])
                outs += [slot[first:last] for slot in pull.slots]
            elif isinstance(pull.out, Answer):
                answers.append(pull.out)
            else:
                outs += pull.out[slice(*layout.rows(first, last))]
                encoded = pull.sizes
            sizes.append(encoded)
        if answers and outs:
            raise InvalidValue("pulls from custom tables and from others need two exchanges")
        return outs, tuple(answers), tuple(sizes)

    def _pushed(self, pushes: Sequence[PushOp], server_part: _Server) -> list[memoryview]:
        buffers: list[memoryview] = []
        for index, first, last in server_part.push_cuts:
            op = pushes[index]
            if op.keys is None:
                buffers.append(op.values[first:last])
                buffers += [slot[first:last] for slot in op.slots]
                continue
            buffers.append(op.keys[first:last].cast("B") if first < last else _EMPTY)
            buffers.append(self._layouts[self.numbers[op.table]].view(op.values, first, last))
        return buffers

    def _encoded(
        self, pushes: Sequence[PushOp], server_part: _Server, buffers: list[memoryview]
    ) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """Replace the buffers of encoded pushes, which were cut as if they were not encoded.

        Returns:
            The bytes that this spares, and of each part the sizes of its encoded fragments.
        """
        sizes: list[tuple[int, ...]] = []
        spared = at = 0
        for index, first, last in server_part.push_cuts:
            op, encoded = pushes[index], _RAW
            layout = self._layouts[self.numbers[op.table]]
            if op.sizes and op.keys is not None:
                [size] = encoded = op.sizes
                buffers[at + 1] = op.values[first * size : last * size]
                spared += layout.nbytes(last - first) - size * (last - first)
            elif op.sizes:
                start, stop, encoded = layout.encoded_span(op.rows, op.sizes, first, last)
                buffers[at] = op.values[start:stop]
                spared += last - first - (stop - start)
            sizes.append(encoded)
            at += 1 + len(op.slots) if op.keys is None else 2
        return spared, tuple(sizes)

    def _unordered(self, op: PushOp | PullOp) -> bool:
        """Return whether several servers have the hash slots of keys that are in any order."""
        if op.keys is None or op.ordered:
            return False
        number = self._number(op.table)
        return self.view.tables[number].sparse and len(self.view.placements[number]) > 1

    # ------------------------------------------------------------------ plans

    def _plan(self, pushes: Sequence[PushOp], pulls: Sequence[PullOp], everybody: bool) -> Plan:
        ops: list[PushOp | PullOp] = [*pushes, *pulls]
        if len(ops) > REPEATS_MAX:
            for some in (pushes, pulls):
                check_repeats(some, lambda table: self.view.tables[self._number(table)])
        if any(op.keys is not None for op in ops):
            return self._make_plan(pushes, pulls, everybody)
        key = (everybody, len(pushes), *((op.table, op.rows, len(op.slots)) for op in ops))
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= PLANS_KEPT:
                self._plans.clear()
            plan = self._plans[key] = self._make_plan(pushes, pulls, everybody)
        return plan

    def _make_plan(
        self, pushes: Sequence[PushOp], pulls: Sequence[PullOp], everybody: bool
    ) -> Plan:
        servers: dict[int, _Server] = {}
        members = self.view.servers
        for index, op in enumerate(pushes):
            for at, rows, first, last, keys in self._cuts(op):
                server_part = servers.setdefault(at, _Server(members[at].id))
                number, slots = self._number(op.table), len(op.slots)
                server_part.pushes.append(Part(number, rows.start, rows.stop, keys, slots))
                server_part.push_cuts.append((index, first, last))
        for index, pull in enumerate(pulls):
            number = self._number(pull.table)
            same = _pushed_keys(pull, pushes, pulls)
            for at, rows, first, last, keys in self._cuts(pull):
                if not keys:
                    continue  # none of the keys is there
                server_part = servers.setdefault(at, _Server(members[at].id))
                named = SAME if same else keys
                server_part.pulls.append(
                    Part(number, rows.start, rows.stop, named, len(pull.slots))
                )
                if keys > 0:
                    if not same:
                        server_part.key_cuts.append((index, first, last))
                    first, last = self._layouts[number].span(first, last)
                server_part.pull_cuts.append((index, first, last))
        most = max((max(len(s.pushes), len(s.pulls)) for s in servers.values()), default=0)
        if most > PARTS_ASKED_MAX:
            raise InvalidValue(
                f"an exchange that names {most} shards of one server; a request names at most "
                f"{PARTS_ASKED_MAX}: exchange fewer tables at once"
            )
        if everybody:
            for at, member in enumerate(members):
                servers.setdefault(at, _Server(member.id))
        pushed = tuple(sorted({self._number(op.table) for op in pushes}))
        return Plan(
            pushed,
            tuple(sorted({self._number(op.table) for op in pulls})),
            any(self.view.tables[each].consistency.apply_at == "round_end" for each in pushed),
            [servers[at] for at in sorted(servers)],
        )

    def _cuts(self, op: PushOp | PullOp) -> list[tuple[int, KeyRange, int, int, int]]:
        """Return the cuts of an operation: (server, rows, first, last, keys).

        `first` and `last` are offsets in the bytes of the values, or key indices.
        """
        number = self._number(op.table)
        layout, spec = self._layouts[number], self.view.tables[number]
        scans = isinstance(op, PullOp) and isinstance(op.out, Scan) and spec.sparse
        if spec.hashed and not scans and (op.keys is None or len(op.keys) > KEYS_MAX):
            raise InvalidValue(
                f"table {op.table!r} is {spec.kind}: a request has at least its keys, and at most "
                f"{KEYS_MAX} keys (or words of a call) per server; split it"
            )
        answered = isinstance(op, PullOp) and isinstance(op.out, Answer) and not scans
        if (spec.kind == "custom") != answered:
            raise InvalidValue(
                f"table {op.table!r} is {spec.kind}: calls are for custom tables, scans for sparse"
            )
        if isinstance(op, PushOp) and spec.group != self._group and spec.consistency != asp():
            owner = f"group {spec.group!r}" if spec.group else "the first group"
            raise InvalidValue(
                f"table {op.table!r} is {spec.consistency.name} and goes by the clocks of {owner}: "
                "workers of other groups may pull from it, and push to tables that are asp"
            )
        cuts = []
        for at, rows in self._route(number, op.rows, isinstance(op, PushOp)):
            if op.keys is None:
                first, last = rows.start - op.rows.start, rows.stop - op.rows.start
                cuts.append((at, rows, *layout.span(first, last), -1))
                continue
            if not spec.hashed:
                first = bisect_left(op.keys, rows.start)
                last = bisect_left(op.keys, rows.stop, first)
            elif spec.kind == "custom" or len(self.view.placements[number]) == 1:
                first, last = 0, len(op.keys)
            else:
                first = bisect_left(op.keys, rows.start, key=slot_of)
                last = bisect_left(op.keys, rows.stop, first, key=slot_of)
            cuts.append((at, rows, first, last, last - first))
        if op.keys is not None and sum(keys for *_, keys in cuts) != len(op.keys):
            raise InvalidValue(f"table {op.table!r}: keys outside the range {op.rows}")
        return cuts

    def _route(self, number: int, rows: KeyRange, pushed: bool) -> list[tuple[int, KeyRange]]:
        """Return (server, rows) for each shard of `rows`: the head, or the tail for pulls."""
        route = self._routes.get((number, rows, pushed))
        if route is None:
            spec = self.view.tables[number]
            if not spec.keys.covers(rows):
                raise InvalidValue(f"rows {rows} are not in table {spec.name!r} of {spec.rows}")
            head = pushed or spec.consistency.name == "asp"  # asp reads its own writes at the head
            cuts = [
                (self._at[placement.head if head else placement.tail], placement.rows & rows)
                for placement in self.view.placements[number]
            ]
            if len(self._routes) >= PLANS_KEPT:
                self._routes.clear()
            route = [(at, cut) for at, cut in cuts if len(cut)]
            self._routes[number, rows, pushed] = route
        return route

    def _number(self, table: str) -> int:
        number = self.numbers.get(table)
        if number is None:
            known = ", ".join(spec.name for spec in self.view.tables) or "none"
            raise InvalidValue(f"no table {table!r} in this run (known: {known})")
        return number

    def _check_buffers(self, pushes: Sequence[PushOp], pulls: Sequence[PullOp]) -> None:
        for op in pushes:
            if op.sizes:
                self._check_encoded(op, op.values)
                continue
            for buffer in (op.values, *op.slots):
                self._check(op, buffer)
        for pull in pulls:
            if not isinstance(pull.out, memoryview):
                continue
            if pull.sizes:
                self._check_encoded(pull, pull.out)
                continue
            for out in (pull.out, *pull.slots):
                self._check(pull, out)
                if out.readonly:
                    raise InvalidValue(f"table {pull.table!r}: cannot pull into a read-only buffer")

    def _check_encoded(self, op: PushOp | PullOp, buffer: memoryview) -> None:
        layout, pulled = self._layouts[self._number(op.table)], isinstance(op, PullOp)
        if op.keys is None:
            problem, nbytes = layout.encoded_problem(op.rows, op.sizes, pulled), sum(op.sizes)
        else:
            problem, nbytes = layout.encoded_row_problem(op.sizes), len(op.keys) * op.sizes[0]
        if op.slots:
            problem = "rows with slots are not encoded"
        if not problem and buffer.nbytes != nbytes:
            problem = f"{buffer.nbytes} bytes of encoded rows of {nbytes}"
        if problem:
            raise InvalidValue(f"table {op.table!r}: {problem}")

    def _check(self, op: PushOp | PullOp, buffer: memoryview) -> None:
        count = len(op.rows) if op.keys is None else len(op.keys)
        if problem := self._layouts[self._number(op.table)].problem(count, buffer):
            raise InvalidValue(f"table {op.table!r}: {problem}")


def _pushed_keys(pull: PullOp, pushes: Sequence[PushOp], pulls: Sequence[PullOp]) -> bool:
    """Return whether its table's only pull has the keys of the only push: the same memory."""
    if pull.keys is None:
        return False
    pushed = [push for push in pushes if push.table == pull.table]
    pulled = [each for each in pulls if each.table == pull.table]
    return len(pushed) == len(pulled) == 1 and pushed[0].keys is pull.keys


_EMPTY = memoryview(b"")
_RAW: tuple[int, ...] = ()  # the sizes of fragments that are not encoded
