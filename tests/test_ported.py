"""Scripts in the manner of known ones train with Shoal as with torch's DistributedDataParallel."""

import re

import pytest

from examples.ported.compare import (
    HERE,
    SCRIPTS,
    STRATEGIES,
    changed,
    difference,
    losses,
    text_of,
    version,
)

README = (HERE / "README.md").read_text()


@pytest.mark.parametrize("name", [*SCRIPTS, "hf_trainer"])
def test_the_docstring_and_the_table_count_the_changed_lines(name):
    text = text_of(name)
    [said] = re.findall(r"^Lines changed for Shoal: (\d+)(?:; for .*: (\d+))?\.$", text, re.M)
    counted = [changed(name, how) for how in ("sync", "ddp")]
    unclipped = 1 if "-" in name else 0  # the line that clips is in none of its versions
    assert counted[0] == int(said[0]) - unclipped > 0
    assert counted[1] == int(said[1] or 0)
    if name != "hf_trainer":
        assert f"| `{name}` | {counted[0]} | {counted[1]} | " in README


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_plain_scripts_know_nothing_of_other_processes(name):
    """They train alone."""
    text = version(text_of(name), "plain")
    code = text.split('"""', 2)[2]
    assert not re.search(r"shoal|\bdist\b|DDP|\brank\b", code)
    script: dict = {"__name__": name}
    exec(compile(text, name, "exec"), script)
    found = script["train"](3)
    assert len(found) in (3, 6)  # the generator's as well
    assert found[-1] != found[0]


@pytest.mark.real
def test_losses_are_those_of_distributed_data_parallel(tmp_path):
    """Of each worker and step; a gradient's mean that servers take cannot be clipped."""
    theirs = losses("ddp", SCRIPTS, tmp_path)
    for name in SCRIPTS:
        assert difference(theirs[0][name], theirs[1][name]) > 1e-3  # they have data of their own
    for how in STRATEGIES:
        ours = losses(how, SCRIPTS, tmp_path)
        for rank, name in [(rank, name) for rank in (0, 1) for name in SCRIPTS]:
            if (how, name) == ("sync", "gpt"):
                assert "no worker has the mean gradient for clip_norm" in ours[rank][name]
            else:
                assert difference(ours[rank][name], theirs[rank][name]) < 1e-5, (how, rank, name)


@pytest.mark.real
def test_the_trainer_of_hugging_face_learns_alike_on_servers_and_without(tmp_path):
    found = {how: losses(how, ["hf_trainer"], tmp_path) for how in STRATEGIES}
    for sync, summed in zip(found["sync"], found["allreduce"], strict=True):
        assert len(sync["hf_trainer"]) == 12
        assert sync["hf_trainer"][-1] < 0.95 * sync["hf_trainer"][0]
        assert difference(sync["hf_trainer"], summed["hf_trainer"]) < 1e-5
    assert difference(*(each["hf_trainer"] for each in found["sync"])) > 1e-3  # data of their own
