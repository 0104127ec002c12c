"""A worker of a training job that is started by hand (`shoal worker JOB.toml`)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from shoal.apps.train.checks import check_continued, check_inputs, check_job
from shoal.client.places import scheduler_at, token_at
from shoal.data.places import search_path
from shoal.engines.addresses import worker_address
from shoal.engines.options import WorkerRole, flag_of
from shoal.errors import InvalidValue
from shoal.runs.job import from_mapping
from shoal.runs.job_file import load_job
from shoal.runs.resume import resumed_at
from shoal.runs.worker import WorkerTask, threads_of
from shoal.storage.run_folder import RunFolder

OF_JOBS = (  # options that a worker has beside those of its job
    "scheduler",
    "listen",
    "interface",
    "rank",
    "token",
    "init_timeout_s",
    "resume",
    "resume_at",
    "drop_messages",
)


def become_job_worker(
    path: Path, role: WorkerRole, env: Mapping[str, str]
) -> tuple[RunFolder, dict[str, Any]]:
    """Join a cluster as a worker of a job; return this worker's folder and its figures.

    The scheduler and the servers are started by hand, too, with as many workers as the job has.
    The worker's results are in a folder of their own below the job's `out`.

    env:  the environment, which may name folders of data sets

    Raises:
        InvalidValue, UnknownName: the job, or an option that the job has to say
        DataMissing, DataCorrupt, NotTrusted: its inputs, or the run that it continues
        JoinRefused, JoinTimeout: as `shoal.init`
    """
    job = from_mapping(load_job(path))
    for name in role.__struct_fields__:
        if name not in OF_JOBS and getattr(role, name) != getattr(WorkerRole(), name):
            raise InvalidValue(f"{flag_of(WorkerRole, name)} is for scripts: write it in {path}")
    if not 0 <= role.rank < job.workers:
        raise InvalidValue(
            f"give --rank, from 0 to {job.workers - 1}: {path} has {job.workers} workers, and each "
            "trains on the data of its rank"
        )
    if role.resume:
        job = msgspec.structs.replace(job, resume=role.resume, resume_at=role.resume_at)
    if role.drop_messages:
        job = msgspec.structs.replace(job, drop_messages=role.drop_messages)
    check_job(job)
    start_clock = resumed_at(job.resume, job.resume_at, job.keeps_states)
    job = job.resolved
    if start_clock:
        check_continued(job, start_clock)
    folders = search_path(Path(job.data_dir) if job.data_dir else None, env)
    check_inputs(job, folders)
    folder = RunFolder.create(Path(job.out), f"{job.title or job.data}-worker-{role.rank}")
    task = WorkerTask(
        spec=msgspec.to_builtins(job),
        scheduler=scheduler_at(role.scheduler),
        token=role.token or token_at(role.scheduler),
        folder=str(folder.path.resolve()),
        started_at=time.time(),
        start_clock=start_clock,
        threads=threads_of(1),
        rank=role.rank,
        before=str(Path(job.resume).resolve()) if start_clock else "",
        init_timeout_s=role.init_timeout_s,
        listen=worker_address(role),
        inputs={"data_dirs": [str(each) for each in folders]},
    )
    from shoal.apps.train.worker import run_worker  # imports torch

    run_worker(**msgspec.to_builtins(task))
    return folder, folder.result(role.rank)
