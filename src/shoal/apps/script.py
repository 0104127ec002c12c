"""`shoal run`: a user's own script as the workers of a run."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.engines.base import Task
from shoal.engines.cluster import start_cluster
from shoal.engines.local import LocalEngine, spare_processes
from shoal.errors import UsageError
from shoal.runtime.folder import RunFolder


def run_script(
    script: Path,
    args: list[str],
    workers: int,
    servers: int,
    out: Path,
    title: str,
    imports: Sequence[str] = (),
    replicas: int = 1,
    slow_share: float = 0.0,
    on_worker_loss: str = "stop",
) -> Path:
    """Run `script` on `workers` processes with `servers` servers; returns the run's folder.

    Rank 0 writes to this terminal, the others to their logs.

    slow_share: a worker is dropped that the others wait for in so much of the time; 0 for none
    on_worker_loss:  `stop`, or `drop`: the others go on without one that is killed
    """
    folder = RunFolder.create(out, title or script.stem)
    with LocalEngine(folder) as engine:
        scheduler = start_cluster(
            engine, servers, workers, imports=imports, replicas=replicas, slow_share=slow_share
        )
        threads = max(1, (os.cpu_count() or 1) // workers)
        for rank in range(workers):
            env = {
                "SHOAL_SCHEDULER": scheduler,
                "SHOAL_RANK": str(rank),
                "OMP_NUM_THREADS": str(threads),
            }
            engine.start(
                Task(
                    f"worker-{rank}",
                    "shoal.apps.script:worker_main",
                    {"script": str(script.resolve()), "args": args, "threads": threads},
                    env=env,
                    inherit_output=rank == 0,
                )
            )
        names = [f"worker-{rank}" for rank in range(workers)]
        given_up = names if on_worker_loss == "drop" else ()
        engine.join(spare=spare_processes(servers, replicas), given_up=given_up)
    return folder.path


def worker_main(script: str, args: list[str], threads: int = 0) -> None:
    """Run a script as `python script args` would, in the run that the environment names."""
    from shoal.runtime.context import joined, joined_once
    from shoal.runtime.memory import keep_memory

    keep_memory()
    if threads:
        import torch

        torch.set_num_threads(threads)
    sys.argv = [script, *args]
    sys.path.insert(0, str(Path(script).parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:
        context = joined()
        if context is not None and not (isinstance(error, SystemExit) and not error.code):
            context.client.abort(f"{type(error).__name__}: {error}"[:500])
            raise
        if not isinstance(error, SystemExit):
            raise
    if not joined_once():
        raise UsageError(f"{script} ended without calling shoal.init(), so it never joined the run")
    context = joined()
    if context is not None:  # else it has left the run by itself
        context.close()


def become_worker(
    scheduler: str, script: str, args: list[str], rank: int, init_timeout_s: float, token: str
) -> None:
    """`shoal worker`: this process joins a cluster and runs the script."""
    from shoal.engines.joining import init

    init(scheduler=scheduler, token=token, init_timeout_s=init_timeout_s, rank=rank)
    worker_main(str(Path(script).resolve()), args)
