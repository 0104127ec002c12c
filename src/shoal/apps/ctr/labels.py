"""Labels of lines: which rows are clicks.

A file has two labels. By default a click has the label 1, and all other rows have 0, or all have
-1. Files of libsvm also have the labels 1 and 2; then 2, the larger one, is a click. `--positive`
and `--negative` name other labels. A file with more labels has several classes, for which there is
no model: `--positive` alone trains one class against all others.
"""

from __future__ import annotations

import re
from math import isnan, nan
from pathlib import Path

import msgspec

from shoal.apps.ctr.spec import CtrSpec
from shoal.data.streams import blocks, opened, unmarked
from shoal.errors import DataCorrupt, InvalidValue

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
USUAL = (1.0, 0.0, -1.0)
SEVERAL = (
    "; models have two classes: --positive LABEL trains one against all others, --negative names "
    "the other one"
)


class Classes(msgspec.Struct, frozen=True):
    """Which labels of lines are clicks.

    positive: the label of a click; NaN: 1, and all other rows have 0 or all have -1
    negative: the label of all other rows; NaN: any label but `positive`
    """

    positive: float = nan
    negative: float = nan

    def of(self, label: float) -> float:
        """Return 1 for the label of a click, and 0 or -1 for that of another row.

        Raises:
            ValueError: the label is neither; the message says what was expected
        """
        if isnan(self.positive):
            if label in USUAL:
                return label
            raise ValueError(f"expected a label of 1, 0 or -1, not '{label:.15g}'{SEVERAL}")
        if label == self.positive:
            return 1.0
        if isnan(self.negative) or label == self.negative:
            return 0.0
        raise ValueError(
            f"expected a label of {self.positive:.15g} or {self.negative:.15g}, not "
            f"'{label:.15g}'{SEVERAL}"
        )


def classes_of(spec: CtrSpec) -> Classes:
    """Return the labels that the options of a run on lines name.

    Raises:
        InvalidValue: a label is not a number
    """
    found = []
    for name in ("positive", "negative"):
        text = getattr(spec, name)
        if text and not NUMBER.fullmatch(text):
            raise InvalidValue(f"--{name} {text!r}: labels of {spec.format} are numbers")
        found.append(float(text) if text else nan)
    return Classes(*found)


def with_classes(spec: CtrSpec, path: Path) -> CtrSpec:
    """Return the specification with the labels of a training file, if they are 1 and 2.

    The first block of the file decides. A later label that contradicts it is refused by the parser.

    Raises:
        DataCorrupt: the file is damaged, or has a line that is too long
    """
    if spec.positive:
        return spec
    with opened(path) as file:
        try:
            block = unmarked(path, next(blocks(path, file), b""))
        except OSError as error:
            raise DataCorrupt(f"{path}: {error}") from None
    texts = {line.split(None, 1)[0] for line in block.split(b"\n") if line.strip()}
    words = (text.decode(errors="replace") for text in texts)
    labels = {float(word) for word in words if NUMBER.fullmatch(word)}
    if 2.0 in labels and labels <= {1.0, 2.0}:
        return msgspec.structs.replace(spec, positive="2", negative="1")
    return spec
