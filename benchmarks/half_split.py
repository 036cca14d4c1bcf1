"""Calibrate on half of the shape groups and predict the other half: python benchmarks/half_split.py FILE GPU.

FILE is a measurement file of `rooflinekit validate` or a kernel table, GPU the name or file of its accelerator. Whole
groups of shapes (a matrix at all batches, say) are left out, so no row has a neighbour that differs in the batch only.
"""

import sys
from pathlib import Path

import numpy as np

from rooflinekit.calibration.calibrate import calibrate_family
from rooflinekit.calibration.choose import choose_calibration, reach_of
from rooflinekit.calibration.fit import Prior
from rooflinekit.calibration.groups import kernel_groups, read_kernel_tables
from rooflinekit.report.table import aligned
from rooflinekit.specs import load_accelerator
from rooflinekit.types.hardware import System

FEWEST = 8  # rows that a fit needs


def main() -> None:
    """Print the errors of each kernel on the half that its fit has not seen."""
    path, accelerator = Path(sys.argv[1]), load_accelerator(sys.argv[2]).value
    cells, medians = [], []
    for operation, table in read_kernel_tables(path):
        for group in kernel_groups(operation, table):
            if len(group.table) < FEWEST:
                continue
            donor, _ = choose_calibration(accelerator, group.engine)
            near = donor.families.get(group.key) or donor.families[group.family]
            prior = Prior(near.form, distant=reach_of(donor, accelerator, group.engine) == "generic")
            rows = group.rows()
            halves = calibrate_family(rows, System.of(accelerator), group.source, prior, folds=2)
            error = np.abs(halves.corrected / rows.time - 1.0)
            medians.append(float(np.median(error)))
            figures = (medians[-1], float(error.mean()), float(np.quantile(error, 0.9)))
            cells.append([group.key, str(len(rows.time)), *(f"{figure:.1%}" for figure in figures)])
    print("\n".join(aligned(["unseen half", "rows", "median", "mean", "p90"], cells, left=(0,))))
    print(f"\nmedian over kernels: {np.median(medians):.1%}")


if __name__ == "__main__":
    main()
