"""shoal.nn against torch.nn: the same rows, the same gradients, the same training."""

import copy
import io

import pytest
import torch

import shoal
from shoal.client.context import Context
from shoal.errors import InvalidValue, NotFinite, UsageError
from shoal.pytorch import embedding as module
from shoal.tables.consistency import bsp
from shoal.tables.init import Init
from shoal.tables.spec import Access

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("embeddings")]

ROWS, DIM = 30, 4
ADAGRAD = Access("adagrad", {"lr": 0.3})


@pytest.fixture(scope="module")
def context(shared_cluster):
    """Of one worker and two servers for all tests: each module has a table of its own name."""
    _, [client] = shared_cluster(2)
    return Context(0, 1, client)


@pytest.fixture
def asked(context, monkeypatch):
    """How many exchanges the client is asked for."""
    seen = []
    right = context.client.exchange
    monkeypatch.setattr(context.client, "exchange", lambda ask: seen.append(ask) or right(ask))
    return seen


def twin_of(ours):
    """torch's module with the same rows, and its optimizer."""
    kind = torch.nn.EmbeddingBag if isinstance(ours, shoal.nn.EmbeddingBag) else torch.nn.Embedding
    mode = {}
    if kind is torch.nn.EmbeddingBag:
        mode = {"mode": ours.mode, "include_last_offset": ours.include_last_offset}
    twin = kind(ROWS, DIM, padding_idx=ours.padding_idx, **mode)
    with torch.no_grad():
        twin.weight.copy_(ours.client.pull(ours.spec.name, keys=range(ROWS)).wait())
        if ours.padding_idx is not None:
            twin.weight[ours.padding_idx] = 0
    return twin, torch.optim.Adagrad(twin.parameters(), lr=0.3)


def train_both(ours, twin, optimizer, *calls):
    """A step of each on the same calls; the outputs are the same."""
    loss = other = 0.0
    for arguments in calls:
        one, two = ours(*arguments), twin(*arguments)
        torch.testing.assert_close(one, two)
        loss, other = loss + (one**3).sum(), other + (two**3).sum()
    loss.backward()
    shoal.nn.push(ours)
    optimizer.zero_grad()
    other.backward()
    optimizer.step()


@pytest.mark.parametrize("padding", [None, 0, 7])
@pytest.mark.parametrize("shape", [(6,), (3, 4), (2, 3, 2)])
def test_an_embedding_trains_as_torchs(context, padding, shape):
    ours = shoal.nn.Embedding(ROWS, DIM, padding, access=ADAGRAD, context=context)
    twin, optimizer = twin_of(ours)
    random = torch.Generator().manual_seed(0)
    for _ in range(6):
        ids = torch.randint(0, 9, shape, generator=random)
        train_both(ours, twin, optimizer, (ids,))
    if padding is not None:
        assert not ours(torch.tensor([padding])).any()


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 3])
def test_an_embedding_bag_trains_as_torchs(context, mode, padding):
    ours = shoal.nn.EmbeddingBag(
        ROWS, DIM, padding, mode=mode, access=ADAGRAD, init=Init("uniform", -1, 1), context=context
    )
    twin, optimizer = twin_of(ours)
    random = torch.Generator().manual_seed(0)
    for _ in range(6):
        ids = torch.randint(0, 9, (12,), generator=random)
        weights = torch.rand(12, generator=random) if mode == "sum" else None
        offsets = torch.tensor([0, 5, 5, 9])  # one bag is empty
        train_both(ours, twin, optimizer, (ids, offsets, weights), (ids.view(3, 4), None, None))


def test_an_embedding_trains_beside_dense_parameters(context, asked):
    """Rows and dense parameters train side by side, each in its own way, as in one process."""
    ours = shoal.nn.Embedding(ROWS, DIM, access=ADAGRAD, context=context)
    twin, optimizer = twin_of(ours)
    heads = [torch.nn.Linear(DIM, 1) for _ in range(2)]
    heads[1].load_state_dict(heads[0].state_dict())
    mine, theirs = (torch.nn.Sequential(e, h) for e, h in zip((ours, twin), heads, strict=True))
    dense = shoal.Optimizer(torch.optim.SGD(heads[0].parameters(), lr=0.1), context=context)
    other = torch.optim.SGD(heads[1].parameters(), lr=0.1)
    random = torch.Generator().manual_seed(0)
    for _ in range(8):
        ids = torch.randint(0, ROWS, (16,), generator=random)
        losses = [((model(ids) - 1) ** 2).mean() for model in (mine, theirs)]
        torch.testing.assert_close(*losses)
        dense.zero_grad()
        losses[0].backward()
        shoal.nn.push(mine)
        dense.step()
        optimizer.zero_grad(), other.zero_grad()
        losses[1].backward()
        optimizer.step(), other.step()
    assert not list(ours.parameters())


def test_a_step_sends_one_pull_and_one_push_for_all_tables(context, asked):
    users, items = (shoal.nn.Embedding(None, DIM, context=context) for _ in range(2))
    assert users.spec.name != items.spec.name
    both = torch.nn.ModuleList([users, items])
    ids = torch.tensor([1, 2, 2]), torch.tensor([[-1, 1 << 62, 2]])
    shoal.nn.prefetch((users, ids[0]), (items, ids[1]))
    assert len(asked) == 1
    score = (users(ids[0]) * items(ids[1])).sum()
    assert len(asked) == 1
    score.backward()
    shoal.nn.push(both).wait()
    assert len(asked) == 2
    assert [len(op.keys) for op in asked[0].pulls] == [2, 3]
    assert [len(op.keys) for op in asked[1].pushes] == [2, 3]
    users(ids[0])  # what was prefetched is used once
    assert len(asked) == 3
    users(ids[0].clone())
    assert len(asked) == 4


def test_a_push_with_then_prefetches_in_the_same_message(context, asked):
    """Gradients go, and the rows of the next batch come back: updated ones."""
    ours = shoal.nn.Embedding(
        None, 1, access=Access("sgd", {"lr": 1.0}), init=Init(), context=context
    )
    first, second = torch.tensor([1, 2]), torch.tensor([2, 3])
    ours(first).sum().backward()
    shoal.nn.push(ours, then=[(ours, second)])
    assert len(asked) == 2
    assert ours(second).ravel().tolist() == [-1, 0]
    assert len(asked) == 2
    shoal.nn.push(ours, then=[(ours, first)])  # without gradients it only looks up
    assert ours(first).ravel().tolist() == [-1, -1]
    assert len(asked) == 3
    with pytest.raises(UsageError, match="modules"):
        shoal.nn.push(then=[(ours, first)])


def test_modules_may_share_a_table(context, asked):
    """And several uses in a step are one update of a row."""
    one, two = (
        shoal.nn.Embedding(
            None,
            1,
            table="shared",
            access=Access("adagrad", {"lr": 1.0}),
            init=Init(),
            context=context,
        )
        for _ in range(2)
    )
    (one(torch.tensor([5])) + two(torch.tensor([5])) + one(torch.tensor([5]))).sum().backward()
    shoal.nn.push(one, two).wait()
    assert [len(op.keys) for op in asked[-1].pushes] == [1]
    assert one(torch.tensor([5])).item() == pytest.approx(-1.0)  # one AdaGrad step of 3, not three


def test_each_gradient_is_pushed_once(context):
    ours = shoal.nn.Embedding(
        None, 1, access=Access("sgd", {"lr": 1.0}), init=Init(), context=context
    )
    one, two = ours(torch.tensor([1])), ours(torch.tensor([2]))
    one.sum().backward(retain_graph=True)
    shoal.nn.push(ours)
    two.sum().backward()
    one.sum().backward()
    shoal.nn.push(ours).wait()
    assert ours(torch.tensor([1, 2])).ravel().tolist() == [-2, -1]


def test_prefetched_rows_are_used_for_equal_ids_only(context, asked):
    ours = shoal.nn.Embedding(
        None, 1, access=Access("sgd", {"lr": 1.0}), init=Init(), context=context
    )
    ids = torch.tensor([1])
    with torch.no_grad():
        shoal.nn.prefetch((ours, ids))
    ours(ids).sum().backward()
    shoal.nn.push(ours)
    shoal.nn.prefetch((ours, ids))
    ids[0] = 2
    assert ours(ids).item() == 0
    assert ours(torch.tensor([1])).item() == -1


def test_two_embeddings_begin_with_different_rows(context):
    users, items = (shoal.nn.Embedding(None, DIM, context=context) for _ in range(2))
    ids = torch.arange(5)
    assert not torch.equal(users(ids), items(ids))


def test_a_forward_pass_without_gradients_leaves_nothing_to_push(context):
    ours = shoal.nn.Embedding(ROWS, DIM, context=context)
    with torch.no_grad():
        ours(torch.tensor([1]))
    assert not ours.pending
    assert shoal.nn.push(ours) is None
    ours(torch.tensor([1]))  # and never backward
    assert shoal.nn.push(ours) is None
    assert ours(torch.empty((0, 2), dtype=torch.int64)).shape == (0, 2, DIM)


def test_gradients_that_are_never_pushed_raise_an_error(context, monkeypatch):
    monkeypatch.setattr(module, "PENDING_MOST", 3)
    ours = shoal.nn.Embedding(ROWS, DIM, context=context)
    for _ in range(2):
        ours(torch.tensor([1])).sum().backward()
    with pytest.warns(UserWarning, match=r"gradients of 2 batches .*step a shoal\.Optimizer"):
        ours(torch.tensor([1])).sum().backward()
    with pytest.raises(UsageError, match=r"shoal\.nn\.push"):
        ours(torch.tensor([1]))


def test_two_workers_train_one_table_in_rounds(cluster):
    """BSP: the mean of both workers' gradients, as in one process with both batches."""
    _, clients = cluster(2, 2)
    sgd, zeros = Access("sgd", {"lr": 1.0}), Init()
    modules = [
        shoal.nn.Embedding(
            None, 1, access=sgd, init=zeros, consistency=bsp(), context=Context(rank, 2, client)
        )
        for rank, client in enumerate(clients)
    ]
    for ours, ids in zip(modules, ([1, 2], [2, 3]), strict=True):
        ours(torch.tensor(ids)).sum().backward()
        shoal.nn.push(ours, weight=2)
        clients[modules.index(ours)].advance()
    rows = [ours(torch.tensor([1, 2, 3])).detach().ravel().tolist() for ours in modules]
    assert rows[0] == rows[1] == [-0.5, -1.0, -0.5]


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (torch.tensor([1.0]), "float32"),
        (torch.tensor([True]), "bool"),
        (torch.tensor([3, ROWS]), f"id {ROWS}"),
        (torch.tensor([-1]), "id -1"),
        ([1], "list"),
    ],
)
def test_invalid_ids_are_refused_by_name(context, ids, says):
    ours = shoal.nn.Embedding(ROWS, DIM, context=context)
    with pytest.raises(InvalidValue, match=says):
        ours(ids)


def test_non_finite_gradients_and_invalid_modules_are_refused(context):
    ours = shoal.nn.Embedding(ROWS, DIM, access=ADAGRAD, context=context)
    before = ours(torch.tensor([4])).detach().clone()
    (ours(torch.tensor([4])) * float("inf")).sum().backward()
    with pytest.raises(NotFinite, match="key 4"):
        shoal.nn.push(ours)
    assert torch.equal(ours(torch.tensor([4])), before)
    last = shoal.nn.Embedding(ROWS, DIM, -1, context=context)
    assert not last(torch.tensor([ROWS - 1])).any()
    assert not shoal.nn.Embedding(None, DIM, -1, context=context)(torch.tensor([-1])).any()
    for count, padding in ((0, None), (-5, None), (10, 10), (10, -11)):
        with pytest.raises(InvalidValue, match="num_embeddings"):
            shoal.nn.Embedding(count, DIM, padding, context=context)
    with pytest.raises(InvalidValue, match="median"):
        shoal.nn.EmbeddingBag(ROWS, DIM, mode="median", context=context)
    with pytest.raises(InvalidValue, match="int32"):
        shoal.nn.Embedding(ROWS, DIM, dtype=torch.int32, context=context)


def test_an_optimizer_pushes_the_gradients_of_embeddings(context):
    sgd = Access("sgd", {"lr": 1.0})
    mine, other = (
        shoal.nn.Embedding(None, 1, access=sgd, init=Init(), context=context) for _ in range(2)
    )
    layer = torch.nn.Linear(1, 1)
    optimizer = shoal.Optimizer(
        torch.optim.SGD(layer.parameters(), lr=0.0), "asgd", embeddings=[mine], context=context
    )
    ids = torch.tensor([7])

    def backward():
        (mine(ids) + other(ids)).sum().backward()

    backward()
    optimizer.step(weight=0)  # a step without data sends nothing
    assert len(mine.pending) == 1
    optimizer.step()
    assert (mine(ids).item(), len(other.pending)) == (-1.0, 1)
    backward()
    optimizer.zero_grad()  # drops what it would have pushed
    optimizer.step()
    assert (mine(ids).item(), len(other.pending)) == (-1.0, 2)
    everything = shoal.Optimizer(
        torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.0), "asgd", context=context
    )
    everything.step()
    assert other(ids).item() == -2.0


def test_rows_begin_small_enough_to_be_learnt(context):
    rows = shoal.nn.Embedding(None, 64, context=context)(torch.arange(64))
    assert abs(rows.std().item() - module.DEFAULT_STD) < 0.1 * module.DEFAULT_STD


# --- what ordinary scripts do ----------------------------------------------------------------


def test_rows_are_read_in_inference_mode(context):
    ours = shoal.nn.Embedding(ROWS, DIM, access=ADAGRAD, table="inferred", context=context)
    ids = torch.tensor([3, 5])
    expected = ours(ids).detach()
    with torch.inference_mode():
        made_here = torch.tensor([3, 5])
        assert torch.equal(ours(ids), expected)
        assert torch.equal(ours(made_here), expected)
    assert torch.equal(ours(made_here), expected)
    assert not ours.pending


@pytest.mark.parametrize("last", [False, True])
def test_bags_take_maxima_and_a_last_offset_as_torchs_do(context, last):
    ours = shoal.nn.EmbeddingBag(
        ROWS, DIM, mode="max", include_last_offset=last, access=ADAGRAD, table=f"max{last}",
        context=context,
    )  # fmt: skip
    twin, optimizer = twin_of(ours)
    ids, offsets = torch.tensor([3, 5, 3, 7, 1]), torch.tensor([0, 2, 5][: 2 + last])
    for _ in range(3):
        train_both(ours, twin, optimizer, (ids, offsets))


@pytest.mark.parametrize("freeze", [False, True])
def test_a_module_begins_with_pretrained_rows(context, freeze):
    rows = torch.randn(ROWS, DIM)
    ours = shoal.nn.Embedding.from_pretrained(
        rows, freeze, access=ADAGRAD, table=f"pretrained{freeze}", context=context
    )
    twin = torch.nn.Embedding.from_pretrained(rows.clone(), freeze)
    optimizer = torch.optim.Adagrad([twin.weight], lr=0.3)
    ids = torch.tensor([0, 3, ROWS - 1])
    assert torch.equal(ours(ids), rows[ids])
    for _ in range(2):
        out = ours(ids)
        assert out.requires_grad != freeze
        if not freeze:
            optimizer.zero_grad()
            (twin(ids) ** 3).sum().backward()
            optimizer.step()
            (out**3).sum().backward()
            shoal.nn.push(ours).wait()
    torch.testing.assert_close(ours(ids), twin(ids))


def test_pretrained_rows_are_a_matrix(context):
    with pytest.raises(InvalidValue, match="matrix of rows, not \\(3,\\)"):
        shoal.nn.Embedding.from_pretrained(torch.ones(3), context=context)


def test_copies_and_pickles_are_refused_by_name(context):
    ours = shoal.nn.Embedding(ROWS, DIM, table="uncopied", context=context)
    for how in (copy.deepcopy, lambda each: torch.save(each, io.BytesIO())):
        with pytest.raises(UsageError, match=r"'uncopied' are on servers.*shoal\.save"):
            how(torch.nn.Sequential(ours))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_norm": 1.0}, "has no max_norm: rows are changed by their access method"),
        ({"scale_grad_by_freq": True}, "has no scale_grad_by_freq"),
        ({"_weight": torch.ones(3, 2)}, "has no _weight: use from_pretrained"),
        ({"spares": True}, "has no option 'spares'"),
    ],
    ids=["max_norm", "scale", "weight", "unknown"],
)
def test_options_that_torch_has_are_refused_by_name(context, options, told):
    with pytest.raises(InvalidValue, match=told):
        shoal.nn.Embedding(ROWS, DIM, context=context, **options)
    shoal.nn.Embedding(ROWS, DIM, sparse=True, max_norm=None, table="taken", context=context)
