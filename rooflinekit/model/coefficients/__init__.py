"""Steps and memory of a deployment as numbers that any evaluator can use: a spreadsheet, a web page, these few lines.

Python exports them once for a plan; what is evaluated from them equals the plan's own answer to rounding.
"""

from rooflinekit.model.coefficients.export import Known
from rooflinekit.model.coefficients.kernel import KernelCoefficients, TimeCoefficients
from rooflinekit.model.coefficients.linear import Linear
from rooflinekit.model.coefficients.plan import PlanCoefficients, plan_coefficients
from rooflinekit.model.coefficients.state import Shape, State
from rooflinekit.model.coefficients.surface import Position, SurfaceSlice

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
