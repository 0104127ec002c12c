"""`shoal train`, and its applications."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from shoal.apps.ctr.spec import CtrSpec
from shoal.apps.word2vec.spec import WordsSpec
from shoal.cli.group import as_json, ended_by_signals, given, main, options_of, plain, tell, trusts
from shoal.cli.ranks import check_workers, is_led, ranked
from shoal.runs.job import JobSpec, continued, from_mapping
from shoal.runs.job_file import load_job
from shoal.runs.trust import check_job_file


@main.command(short_help="train a model on this machine", cleans=True)
@click.argument("job", metavar="DATA|JOB.toml", required=False)
@options_of(JobSpec, leave_out=("layers",))
@ranked()
@trusts
@as_json
@click.option("--next-steps", is_flag=True, hidden=True)
def train(
    job: str | None, ranks: dict[str, Any], as_json: bool, next_steps: bool, **options: Any
) -> None:
    """Train on a data set (digits, mnist, cifar10, images:PATH, csv:PATH), or as JOB.toml says.

    Options override the file. A scheduler, servers and workers start as processes of this machine;
    the results are in a folder under --out.

    \b
    shoal train digits --workers 2 --servers 2
    shoal train mnist --strategy ssp --staleness 2 --epochs 3
    shoal train csv:wine.csv.gz --model mlp --lr 0.05
    shoal train --data mine.py:load --model mine.py:make
    """
    from shoal.apps.train.command import TrainApplication
    from shoal.data.places import search_path
    from shoal.reports.events import load_run
    from shoal.reports.live import show_summary
    from shoal.runs.run import run_here
    from shoal.storage.event_log import process_started_at

    started_at = process_started_at()
    spec = from_mapping(job_values(job, given()))
    folders = search_path(Path(spec.data_dir) if spec.data_dir else None, os.environ)
    console = Console(stderr=as_json)
    with ended_by_signals():
        summary = run_here(TrainApplication(spec, folders), console, started_at, **ranks)
    if is_led(ranks):
        return
    if not as_json:
        losses = load_run(summary["run_dir"]).steps.get(0, {}).get("loss", [])
        show_summary(console, summary, losses)
        if next_steps:
            _show_next_steps(summary)
    else:
        click.echo(json.dumps(summary))


@main.command(
    "train ctr", short_help="train a click-through-rate model (LR, FM, DeepFM)", cleans=True
)
@click.argument("train", metavar="[TRAIN]", required=False, default="")
@options_of(CtrSpec, leave_out=("train",))
@ranked()
@trusts
@as_json
def train_ctr(ranks: dict[str, Any], as_json: bool, **options: Any) -> None:
    """Train a click-through-rate model on rows of sparse features.

    TRAIN has the rows; a sample is made from the seed if it is not given.

    The weights are on servers, in sparse tables: a key has a row once it is seen.

    \b
    shoal train ctr
    shoal train ctr train.libsvm --test test.libsvm --l1 1 --epochs 3
    shoal train ctr criteo.txt.gz --model fm --hash-bits 24
    shoal train ctr --resume shoal-runs/ctr-lr-20261122-160000
    """
    from shoal.apps.ctr.command import CtrApplication, show_summary, spec_from
    from shoal.runs.run import run_here
    from shoal.storage.event_log import process_started_at

    started_at = process_started_at()
    spec = spec_from({name: value for name, value in given().items() if name in options})
    console = Console(stderr=as_json)
    with ended_by_signals():
        summary = run_here(CtrApplication(spec), console, started_at, **ranks)
    if not is_led(ranks):
        tell(as_json, summary, show_summary)


@main.command("train word2vec", short_help="train word embeddings (word2vec)", cleans=True)
@click.argument("texts", metavar="[TEXT...]", nargs=-1)
@options_of(WordsSpec, leave_out=("texts",))
@ranked()
@trusts
@as_json
def train_word2vec(
    ranks: dict[str, Any], as_json: bool, texts: tuple[str, ...], **options: Any
) -> None:
    """Train word embeddings: on TEXT files (plain, .gz, .tar.gz), or a sample made from the seed.

    Writes vectors.txt and vectors.bin, which gensim and others read. Prints what it takes for a
    word, and how much of the text is left out.

    \b
    shoal train word2vec
    shoal train word2vec novels.tar.gz --analogies questions-words.txt --workers 2
    shoal train word2vec text.txt --model cbow --dim 200 --threads 2 --workers 1
    shoal train word2vec walks.txt --tokens space --min-count 1
    """
    from shoal.apps.word2vec.command import WordsApplication, show_summary, spec_from
    from shoal.runs.run import run_here
    from shoal.storage.event_log import process_started_at

    started_at = process_started_at()
    named = {"texts": texts} if texts else {}
    spec = spec_from(named | {name: v for name, v in given().items() if name in options})
    console = Console(stderr=as_json)
    with ended_by_signals():
        summary = run_here(WordsApplication(spec), console, started_at, **ranks)
    if not is_led(ranks):
        tell(as_json, summary, show_summary)


def job_values(job: str | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's values from its file or data set and its flags; flags override the file.

    flags:  the flags that were given

    Raises:
        NotTrusted: the file or the run is another user's
    """
    asked = plain(flags, JobSpec)
    if job and not job.endswith(".toml"):
        if "data" in asked:
            raise click.UsageError(f"give {job} or --data {asked['data']}, not both")
        asked["data"] = job
    file = load_job(Path(job)) if job and job.endswith(".toml") else {}
    if file:
        used = {name: value for name, value in file.items() if name not in asked}
        check_workers(file.get("workers"))
        check_job_file(Path(str(job)), used)
    if not flags.get("resume"):
        return {**file, **asked}
    return continued(Path(flags["resume"]), {**file, **asked}, partial(click.echo, err=True))


def _show_next_steps(summary: Mapping[str, Any]) -> None:
    run = summary["run_dir"]
    click.echo(
        f"""
Where to look:  {run}/  (summary.json, workers/*/eval.csv, logs/, model.safetensors)

Next:
  .venv/bin/shoal train digits --strategy ssp --staleness 2    another consistency
  .venv/bin/shoal simulate --seeds 20                          the same cluster, with faults
  .venv/bin/shoal bench wire                                   what the wire can do here"""
    )
