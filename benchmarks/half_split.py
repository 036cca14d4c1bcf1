"""Calibrate on half of the shape groups and predict the other half: python benchmarks/half_split.py FILE GPU.

FILE is a measurement file of `rooflinekit validate` or a kernel table, GPU the name or file of its accelerator. Whole
groups of shapes (a matrix at all batches, say) are left out, so no row has a neighbour that differs in the batch only.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from rooflinekit.evidence.kernel_fit.calibrate import Prior, calibrate_family, kernel_of
from rooflinekit.evidence.kernel_fit.groups import kernel_groups, read_kernel_tables
from rooflinekit.model.types.hardware import System
from rooflinekit.report.document import CellTable
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.calibration.choose import choose_calibration, reach_of

FEWEST = 8  # rows that a fit needs


@dataclass(frozen=True)
class Half:
    """One kernel: its times, each predicted by the fit to the other half of the shape groups [s]."""

    operation: str
    key: str
    engine: str
    measured: np.ndarray
    predicted: np.ndarray

    @property
    def error(self) -> np.ndarray:
        return np.abs(self.predicted / self.measured - 1.0)

    @property
    def median(self) -> float:
        return float(np.median(self.error))

    @property
    def mean(self) -> float:
        return float(self.error.mean())

    @property
    def p90(self) -> float:
        return float(np.quantile(self.error, 0.9))

    @property
    def points(self) -> pd.DataFrame:
        times = {"measured_us": 1e6 * self.measured, "predicted_us": 1e6 * self.predicted}
        return pd.DataFrame({"op": self.operation, **times})


def halves(path: Path, gpu: str) -> Iterator[Half]:
    """Every kernel with enough rows."""
    accelerator = load_accelerator(gpu).value
    for operation, measured in read_kernel_tables(path):
        for group in kernel_groups(operation, measured):
            if len(group.table) < FEWEST:
                continue
            donor, _ = choose_calibration(accelerator, group.engine)
            near = donor.families.get(group.key) or donor.families[group.family]
            rows, distant = group.rows(), reach_of(donor, accelerator, group.engine) in ("maker", "generic")
            prior = Prior(kernel_of(near, rows).form, distant=distant)
            fitted = calibrate_family(rows, System.of(accelerator), group.source, prior, folds=2)
            yield Half(operation, group.key, group.engine, rows.time, fitted.corrected)


def main() -> None:
    """Print the errors of each kernel on the half that its fit has not seen."""
    held = list(halves(Path(sys.argv[1]), sys.argv[2]))
    cells = [
        [half.key, str(len(half.measured)), *(f"{figure:.1%}" for figure in (half.median, half.mean, half.p90))]
        for half in held
    ]
    print("\n".join(CellTable(["unseen half", "rows", "median", "mean", "p90"], cells, left=(0,)).text()))
    print(f"\nmedian over kernels: {np.median([half.median for half in held]):.1%}")


if __name__ == "__main__":
    main()
