"""A whole model in a folder, with the rows that servers have."""

import pytest
import torch
from safetensors.torch import save_file

import shoal
from shoal.client.context import Context
from shoal.errors import DataCorrupt, DataMissing, InvalidValue, UnknownFormat
from shoal.pytorch import saving
from shoal.tables.init import Init

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("embeddings")]


@pytest.fixture(scope="module")
def context(shared_cluster):
    _, [client] = shared_cluster(2)
    return Context(0, 1, client)


class Net(torch.nn.Module):
    def __init__(self, context, dim=4, second=True):
        super().__init__()
        self.words = shoal.nn.Embedding(None, dim, context=context)
        if second:
            self.tags = shoal.nn.EmbeddingBag(None, 2, dtype=torch.float64, context=context)
        self.norm = torch.nn.BatchNorm1d(dim)
        self.head = torch.nn.Linear(dim, 1)

    def forward(self, ids):
        return self.head(self.norm(self.words(ids))).squeeze(1) + self.tags(ids.view(-1, 1)).sum(1)


def trained(context):
    torch.manual_seed(0)
    net, ids = Net(context), torch.randint(-(1 << 62), 1 << 62, (300,))
    for _ in range(3):
        net(ids).square().sum().backward()
        shoal.nn.push(net)
    return net.eval(), ids


def test_all_of_a_model_is_loaded_into_other_tables(context, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "PUSH_ROWS", 64)
    net, ids = trained(context)
    assert shoal.save(net, tmp_path / "saved") == tmp_path / "saved"
    other = Net(context).eval()
    assert other.words.spec.name != net.words.spec.name
    shoal.load(other, tmp_path / "saved")
    assert torch.equal(other(ids), net(ids))
    assert torch.equal(other.norm.running_mean, net.norm.running_mean)
    saved = sorted(each.name for each in (tmp_path / "saved").iterdir())
    assert {"model.safetensors", "words.00000.safetensors"} < set(saved)


def test_a_plain_state_dict_says_what_it_lacks(context):
    net = Net(context)
    with pytest.warns(UserWarning, match=r"has no rows of table .*shoal\.save") as told:
        state = net.state_dict()
    assert len(told) == 2
    assert not any(name.startswith(("words", "tags")) for name in state)


def test_a_smaller_model_leaves_no_files_of_the_one_before(context, tmp_path):
    shoal.save(trained(context)[0], tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    shoal.save(torch.nn.Linear(1, 1), tmp_path)
    saved = sorted(each.name for each in tmp_path.iterdir())
    assert saved == ["model.safetensors", "notes.txt"]


def test_a_model_that_is_an_embedding(context, tmp_path):
    ones = Init.constant(1.0)
    words, other = (shoal.nn.Embedding(None, 2, init=ones, context=context) for _ in range(2))
    (3 * words(torch.tensor([5]))).sum().backward()
    shoal.nn.push(words).wait()
    shoal.save(words, tmp_path)
    shoal.load(other, tmp_path)
    assert torch.equal(other(torch.tensor([5, 6])), words(torch.tensor([5, 6])))


def test_other_models_are_refused_and_change_nothing(context, tmp_path):
    net, _ = trained(context)
    shoal.save(net, tmp_path)
    for other, says in (
        (Net(context, dim=5), "rows of 'words' have 4 elements there, and 5 here"),
        (Net(context, second=False), "has an embedding 'tags'"),
        (torch.nn.Linear(1, 1), "has an embedding 'tags'"),
    ):
        weight = next(other.parameters()).detach().clone()
        with pytest.raises(InvalidValue, match=says):
            shoal.load(other, tmp_path)
        assert torch.equal(next(other.parameters()), weight)
    same = Net(context)
    same.head = torch.nn.Linear(4, 2)
    with pytest.raises(InvalidValue, match="size mismatch"):
        shoal.load(same, tmp_path)


def test_a_model_of_another_shape_leaves_the_tensors_that_fit(context, tmp_path):
    """torch copies those that fit before it raises."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    shoal.save(net, tmp_path)
    other = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(3, 1))
    before = {name: each.clone() for name, each in other.state_dict().items()}
    with pytest.raises(InvalidValue, match="of another model"):
        shoal.load(other, tmp_path)
    assert all(torch.equal(each, before[name]) for name, each in other.state_dict().items())


def test_damaged_and_missing_files_are_named(context, tmp_path):
    net, _ = trained(context)
    with pytest.raises(DataMissing, match=r"no model that shoal\.save has finished"):
        shoal.load(net, tmp_path)
    shoal.save(net, tmp_path)
    rows = tmp_path / "words.00000.safetensors"
    content = rows.read_bytes()
    rows.write_bytes(content[:100])
    with pytest.raises(DataCorrupt, match=r"words\.00000"):
        shoal.load(net, tmp_path)
    rows.unlink()
    with pytest.raises(DataMissing, match=r"words\.00000"):
        shoal.load(net, tmp_path)
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(UnknownFormat):
        shoal.load(net, tmp_path)
    with pytest.raises(InvalidValue, match="cannot be written"):
        shoal.save(net, tmp_path / "model.safetensors" / "below")


def test_a_changed_bit_is_seen(context, tmp_path):
    net, _ = trained(context)
    shoal.save(net, tmp_path)
    for name in ("model", "words.00000", "tags.00000"):
        path = tmp_path / f"{name}.safetensors"
        content = path.read_bytes()
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        with pytest.raises(DataCorrupt, match=name):
            shoal.load(net, tmp_path)
        path.write_bytes(content)
    shoal.load(net, tmp_path)
