"""Seal: proofs that what ranks tell each other is theirs, where all have been given a token.

A store of torch has no password: any host that reaches it can read and change what ranks say. With
a token of their own (SHOAL_TOKEN) each proves by HMAC what it says, rank 0's answer is one to what
this rank has said in this meeting, and the token itself stays out of the store.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from shoal.engines.launchers.rendezvous import Said
from shoal.errors import NotTrusted
from shoal.transport import Identity

HIDDEN = "\0token"  # stands for the token in what is published


class Seal:
    """The proofs of one rank. Without a token nothing is proved.

    token:  the token
    rank:   the rank, which the proof of what it says covers

    Raises:
        InvalidValue: the token is so short that a proof would tell it
    """

    def __init__(self, token: str, rank: int = 0) -> None:
        if token:
            Identity("rank", "worker", token=token)  # refuses one that can be guessed
        self.token = token
        self._rank = rank

    def said(self, said: Said) -> Said:
        """Return what this rank says, with a proof."""
        if not self.token:
            return said
        text = json.dumps(said)
        mark = secrets.token_hex(16)
        return {
            "text": text,
            "mark": mark,
            "proof": self._proof("said", str(self._rank), mark, text),
        }

    def opened(self, sealed: Said, rank: int) -> Said:
        """Return what a rank has said, which rank 0 has read.

        Raises:
            NotTrusted: it has no proof, or a wrong one
        """
        over = ["said", str(rank), str(sealed.get("mark"))]
        return self._opened(sealed, over, "what a rank says")

    def answered(self, answer: Said, heard: Sequence[Said]) -> Said:
        """Return rank 0's answer, with a proof for the ranks that it has heard."""
        if not self.token:
            return answer
        text = json.dumps(_replaced(answer, self.token, HIDDEN))
        marks = [str(each.get("mark", "")) for each in heard]
        return {"text": text, "marks": marks, "proof": self._proof("answer", *marks, text)}

    def checked(self, sealed: Said, said: Said) -> Said:
        """Return rank 0's answer to what this rank has said.

        Raises:
            NotTrusted: it has no proof, or it is another answer
        """
        if not self.token:
            if "proof" in sealed:
                raise NotTrusted("rank 0 has a SHOAL_TOKEN, and this rank has none: set it, too")
            return sealed
        marks = [str(each) for each in sealed.get("marks") or ()]
        if said["mark"] not in marks:
            raise NotTrusted(_OTHER.format("rank 0's answer"))
        opened = self._opened(sealed, ["answer", *marks], "rank 0's answer")
        told: Said = _replaced(opened, HIDDEN, self.token)
        return told

    def _opened(self, sealed: Said, over: Sequence[str], what: str) -> Said:
        if not self.token:
            if "proof" in sealed:
                raise NotTrusted("a rank has a SHOAL_TOKEN, and rank 0 has none: set it, too")
            return sealed
        text = str(sealed.get("text"))
        given = str(sealed.get("proof")).encode()
        if not hmac.compare_digest(given, self._proof(*over, text).encode()):
            raise NotTrusted(_OTHER.format(what))
        told: Said = json.loads(text)
        return told

    def _proof(self, *over: str) -> str:
        return hmac.new(self.token.encode(), json.dumps(over).encode(), sha256).hexdigest()


_OTHER = "{} at the ranks' rendezvous has no proof of this SHOAL_TOKEN: give all ranks the same"


def _replaced(value: Any, old: str, new: str) -> Any:
    """Return a JSON value in which a text is replaced wherever it stands as a value."""
    if isinstance(value, dict):
        return {key: _replaced(each, old, new) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(each, old, new) for each in value]
    return new if isinstance(value, str) and value == old else value
