"""Compare the losses of the scripts beside this one: Shoal with two workers, and torch's DistributedDataParallel.

    python examples/ported/compare.py            # all scripts
    python examples/ported/compare.py gpt vae    # some

Each script has a line `# plain: ...` or `# ddp: ...` for what the script without Shoal has there, and `# shoal` behind
each line that Shoal needs. `version` makes the three scripts of it.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from difflib import SequenceMatcher
from pathlib import Path

import torch.distributed as dist

import shoal
from shoal.errors import InvalidValue

HERE = Path(__file__).parent
SCRIPTS = ("gpt", "gpt-unclipped", "dcgan", "vae", "finetune", "recommender")
STRATEGIES = ("sync", "allreduce")
OTHER = re.compile(r"^( *)# ((?:plain|ddp)(?:, ddp)?): (.*)$")


def version(text, how):
    """The script as it is "plain", with "ddp", or with a strategy of Shoal."""
    lines = []
    for line in text.splitlines():
        if other := OTHER.match(line):
            if how in other[2].split(", "):
                lines.append(other[1] + other[3])
        elif not line.endswith("  # shoal"):
            lines.append(line)
        elif how in STRATEGIES:
            line = line.removesuffix("  # shoal")
            lines.append(re.sub(r'"(sync|allreduce)"', f'"{how}"', line))
    return "\n".join(lines) + "\n"


def text_of(name):
    """A script's text; that of "gpt-unclipped" is gpt.py without the clipping that servers refuse."""
    script, _, unclipped = name.partition("-")
    text = (HERE / f"{script}.py").read_text()
    return re.sub(r", clip_norm=[\d.]+|.*clip_grad_norm_.*\n", "", text) if unclipped else text


def changed(name, how):
    """The number of lines that are new, gone, or other than in the plain script."""
    plain, other = (version(text_of(name), each).splitlines() for each in ("plain", how))
    plain, other = ([line for line in lines if line] for lines in (plain, other))
    steps = SequenceMatcher(None, plain, other, autojunk=False).get_opcodes()
    return sum(max(b - a, d - c) for kind, a, b, c, d in steps if kind != "equal")


def worker(how, names, folder):
    """Train on this process, and write its losses down."""
    rank = int(os.environ.get("RANK", 0))
    if how == "ddp":
        dist.init_process_group("gloo")
    else:
        rank = shoal.init().rank
    found = {}
    for name in names:
        script = {"__name__": name}
        exec(compile(version(text_of(name), how), f"{name} ({how})", "exec"), script)
        try:
            found[name] = script["train"]()
        except InvalidValue as error:  # a strategy refuses an option
            found[name] = str(error)
    (Path(folder) / f"{how}-{rank}.json").write_text(json.dumps(found))
    if how == "ddp":
        dist.destroy_process_group()


def losses(how, names, folder):
    """What each of two processes has found with "ddp" or a strategy: its losses, or a refusal, of each script."""
    python = [sys.executable, "-m"]
    torchrun = [*python, "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    shoal_run = [*python, "shoal", "run", "--workers", "2", "--servers", "1", "--out", str(folder)]
    start = torchrun if how == "ddp" else shoal_run
    words = [*start, str(Path(__file__).resolve()), "as", how, ",".join(names), str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=env)
    if done.returncode:
        raise RuntimeError(f"{how}: {done.stdout}\n{done.stderr}")
    return [json.loads((Path(folder) / f"{how}-{rank}.json").read_text()) for rank in range(2)]


def difference(ours, theirs):
    """The largest difference of losses of the same step, relative to losses above 1."""
    pairs = zip(ours, theirs, strict=True)
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in pairs)


def main(names):
    with tempfile.TemporaryDirectory() as folder:
        found = {how: losses(how, names, folder) for how in ("ddp", *STRATEGIES)}
    print("| script | lines for Shoal | lines for DDP | sync | allreduce |")
    print("|---|---|---|---|---|")
    for name in names:
        cells = [str(changed(name, how)) for how in ("sync", "ddp")]
        for how in STRATEGIES:
            pairs = [
                (one[name], other[name])
                for one, other in zip(found[how], found["ddp"], strict=True)
            ]
            refused = any(isinstance(ours, str) for ours, _ in pairs)
            cells.append(
                "refused" if refused else f"{max(difference(*pair) for pair in pairs):.1e}"
            )
        print(f"| `{name}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["as"]:
        worker(sys.argv[2], sys.argv[3].split(","), sys.argv[4])
    else:
        main(sys.argv[1:] or SCRIPTS)
