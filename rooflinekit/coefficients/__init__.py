"""Steps and memory of a deployment as numbers that any evaluator can use: a spreadsheet, a web page, these few lines.

Python exports them once for a plan; what is evaluated from them equals the plan's own answer to rounding.
"""

from rooflinekit.coefficients.export import Known
from rooflinekit.coefficients.kernel import KernelCoefficients, TimeCoefficients
from rooflinekit.coefficients.linear import Linear
from rooflinekit.coefficients.plan import PlanCoefficients, plan_coefficients
from rooflinekit.coefficients.state import Shape, State
from rooflinekit.coefficients.surface import Position, SurfaceSlice

__all__ = [
    "KernelCoefficients",
    "Known",
    "Linear",
    "PlanCoefficients",
    "Position",
    "Shape",
    "State",
    "SurfaceSlice",
    "TimeCoefficients",
    "plan_coefficients",
]
