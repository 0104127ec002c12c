"""Prints what `make coverage` measured: folders, least covered first, then the worst modules."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import coverage

import shoal

WORST = 20


def percent(covered: int, total: int) -> float:
    return 100.0 * covered / total if total else 100.0


def main() -> None:
    root = Path(shoal.__file__).parent
    data = coverage.Coverage()
    data.load()
    modules: list[tuple[float, str, int]] = []
    folders: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path in sorted(root.rglob("*.py")):
        _, lines, _, missing, _ = data.analysis2(str(path))
        if not lines:
            continue
        name = path.relative_to(root)
        covered = len(lines) - len(missing)
        modules.append((percent(covered, len(lines)), str(name), len(missing)))
        for total in (folders[str(name.parent)], folders["all"]):
            total[0] += covered
            total[1] += len(lines)
    print(f"{'folder':<32}{'lines':>8}{'missing':>9}{'covered':>9}")
    for folder, (covered, total_lines) in sorted(folders.items(), key=lambda f: percent(*f[1])):
        missed, share = total_lines - covered, percent(covered, total_lines)
        print(f"{folder:<32}{total_lines:>8}{missed:>9}{share:>8.1f}%")
    print(f"\nthe {WORST} least covered modules")
    for share, module, missed in sorted(modules)[:WORST]:
        print(f"{module:<48}{missed:>9}{share:>8.1f}%")


if __name__ == "__main__":
    main()
