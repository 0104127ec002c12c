"""What ranks prove to each other, where they have been given a token."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from shoal.engines.launchers import meeting
from shoal.engines.launchers.meeting import Meeting
from shoal.engines.launchers.rendezvous import StoreRendezvous
from shoal.engines.launchers.seal import Seal
from shoal.engines.launchers.world import World
from shoal.errors import InvalidValue, NotTrusted

TOKEN = "a token of sixteen characters"
ANSWER = {"token": TOKEN, "workers": [{"args": {"token": TOKEN, "lr": 0.5}}], "n": 3}


def answer_to(*seals, answer=ANSWER):
    """What ranks say, and rank 0's answer to it."""
    said = [each.said({"local_rank": n}) for n, each in enumerate(seals)]
    return said, seals[0].answered(answer, said)


def test_an_answer_comes_whole_and_without_the_token():
    ranks = [Seal(TOKEN, rank) for rank in range(3)]
    said, answer = answer_to(*ranks)
    assert TOKEN not in json.dumps([said, answer])
    assert [ranks[0].opened(each, rank) for rank, each in enumerate(said)] == [
        {"local_rank": n} for n in range(3)
    ]
    for seal, mine in zip(ranks, said, strict=True):
        assert seal.checked(answer, mine) == ANSWER


def test_without_a_token_nothing_is_proved():
    said, answer = answer_to(Seal(""), Seal(""))
    assert answer == ANSWER
    assert Seal("").checked(answer, said[1]) == ANSWER
    assert Seal("").opened(said[1], 1) == {"local_rank": 1}


def changed(sealed, **how):
    return {**sealed, **how}


@pytest.mark.parametrize(
    "forge",
    [
        lambda answer: ANSWER,
        lambda answer: {},
        lambda answer: changed(answer, text=json.dumps({**ANSWER, "n": 4})),
        lambda answer: changed(answer, proof="0" * 64),
        lambda answer: changed(answer, proof=None),
        lambda answer: changed(answer, marks=answer["marks"][::-1]),
        lambda answer: changed(answer, marks=[]),
        lambda answer: changed(answer, marks=None),
        lambda answer: changed(answer, proof="\u00e9"),
        lambda answer: Seal("another token of sixteen").answered(ANSWER, []),
    ],
)
def test_an_answer_that_another_could_have_made_is_refused(forge):
    ranks = [Seal(TOKEN), Seal(TOKEN)]
    said, answer = answer_to(*ranks)
    with pytest.raises(NotTrusted, match="no proof of this SHOAL_TOKEN"):
        ranks[1].checked(forge(answer), said[1])


def test_an_answer_of_an_earlier_meeting_is_refused():
    ranks = [Seal(TOKEN), Seal(TOKEN)]
    _, earlier = answer_to(*ranks)
    said, _ = answer_to(*ranks)
    with pytest.raises(NotTrusted, match="no proof"):
        ranks[1].checked(earlier, said[1])


def test_a_rank_that_says_what_another_could_have_said_is_refused():
    [said], _ = answer_to(Seal(TOKEN))
    for forged in (
        {"local_rank": 0},
        changed(said, text='{"local_rank": 1}'),
        changed(said, mark="0" * 32),
        changed(said, proof="\u00e9"),
        Seal(TOKEN, 1).said({"local_rank": 0}),
        Seal("another token of sixteen").said({"local_rank": 0}),
    ):
        with pytest.raises(NotTrusted, match="what a rank says"):
            Seal(TOKEN).opened(forged, 0)


def test_a_token_that_can_be_guessed_is_refused():
    with pytest.raises(InvalidValue, match="at least 16 characters"):
        Seal("abc")


def test_a_rank_alone_with_or_without_a_token_is_told():
    said, answer = answer_to(Seal(TOKEN), Seal(TOKEN))
    with pytest.raises(NotTrusted, match="rank 0 has a SHOAL_TOKEN, and this rank has none"):
        Seal("").checked(answer, said[1])
    with pytest.raises(NotTrusted, match="a rank has a SHOAL_TOKEN, and rank 0 has none"):
        Seal("").opened(said[1], 1)


@pytest.mark.parametrize("tokens", [(TOKEN, TOKEN), (TOKEN, "another token of sixteen")])
def test_ranks_of_two_hosts_meet_with_the_token_that_they_have(tmp_path, monkeypatch, tokens):
    store = dist.FileStore(str(tmp_path / "store"), -1)
    monkeypatch.setattr(meeting, "_machine", lambda: "here")
    monkeypatch.setattr(
        meeting, "rendezvous_of", lambda world, *_: StoreRendezvous(world, store, "here")
    )

    def meet(rank):
        world = World("srun", rank, 2, 0, 1, "")
        own = Meeting(world, {"SHOAL_TOKEN": tokens[rank]}, timeout_s=20.0)
        return own.meet(lambda ranks: {"token": ranks.token, "listen": ranks.listen})

    with ThreadPoolExecutor(2) as pool:
        met = [pool.submit(meet, rank) for rank in range(2)]
        if tokens[0] == tokens[1]:
            assert [each.result()["token"] for each in met] == [TOKEN, TOKEN]
        else:
            for each in met:
                with pytest.raises(NotTrusted, match="what a rank says"):
                    each.result()
    held = (tmp_path / "store").read_bytes()
    assert b"shoal/answer" in held
    assert TOKEN.encode() not in held
