"""The job of a run, which says by which rule its keys were made."""

import pytest
from msgspec.structs import replace

from shoal import ctr
from shoal.apps.ctr.command import CtrApplication, spec_from
from shoal.apps.ctr.predicting import Scorer
from shoal.apps.ctr.spec import KEY_RULE, CtrSpec, job_text, spec_of
from shoal.errors import UnknownFormat
from shoal.runs.job_file import dump_job
from shoal.runs.run import run_here
from shoal.storage.run_folder import RunFolder

SPEC = CtrSpec(format="csv", label="label", categorical="city")


def run_of(folder, text):
    folder.mkdir(exist_ok=True)
    RunFolder(folder).write_job(text)
    return folder


@pytest.mark.parametrize("format", ["csv", "libsvm"])
def test_a_job_is_read_as_it_was_written(tmp_path, format):
    spec = replace(SPEC, format=format)
    assert spec_of(run_of(tmp_path, job_text(spec))) == spec


@pytest.mark.parametrize("format", ["csv", "parquet"])
@pytest.mark.parametrize("rule", [None, KEY_RULE + 1])
def test_a_run_whose_keys_follow_another_rule_is_refused(tmp_path, format, rule):
    """Before rules had numbers, rule 1, truth values and times had other keys."""
    text = dump_job(replace(SPEC, format=format), "ctr")
    run = run_of(tmp_path / "run", text if rule is None else f"key_rule = {rule}\n{text}")
    says = (
        rf"job\.toml: the run's keys follow rule {rule or 1}, and this version .* rule {KEY_RULE}"
    )
    for use in (
        lambda: Scorer(run),
        lambda: spec_of(run),
        lambda: spec_from({"resume": str(run)}),
    ):
        with pytest.raises(UnknownFormat, match=says):
            use()


def test_a_run_does_not_begin_with_the_weights_of_another_rule(tmp_path):
    run = run_of(tmp_path / "run", dump_job(SPEC, "ctr"))
    (run / "shards").mkdir()
    (run / "shards" / "server-0.safetensors").touch()
    (tmp_path / "rows.csv").write_text("city,label\nOslo,1\n")
    spec = CtrSpec(train=str(tmp_path / "rows.csv"), init=str(run), out=str(tmp_path / "runs"))
    with pytest.raises(UnknownFormat, match="the run's keys follow rule 1"):
        run_here(CtrApplication(spec))
    assert not (tmp_path / "runs").exists()


@pytest.mark.real
@pytest.mark.parametrize("options", [{}, {"positive": "1"}], ids=str)
def test_a_model_of_labels_1_and_2_predicts_the_clicks(tmp_path, options):
    """The larger label is the click, unless the run names it; here key 3 makes rows of label 2."""
    rows = tmp_path / "rows.libsvm"
    rows.write_text("# made\n" + "2\tqid:1\t3:1.000000 # click\n1.0 4:1\n" * 200)
    result = ctr.train(rows, test=rows, out=str(tmp_path), workers=1, l1=0, **options)
    assert result.metrics["test"]["auc"] == 1
    with Scorer(result.run_dir) as scorer:
        two, one = scorer.predict(["2 3:1", "1 4:1"])
    assert (two > 0.9 > 0.1 > one) is not bool(options)


def test_keys_of_lines_have_no_rule(tmp_path):
    """They are those of the file: runs of libsvm from before go on."""
    text = dump_job(CtrSpec(format="libsvm"), "ctr")
    assert spec_of(run_of(tmp_path, text)).format == "libsvm"
