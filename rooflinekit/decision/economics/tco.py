"""What owning a fleet costs, and after how many months it is cheaper than renting.

    capital = (P − R·(1 + i)^−n)·i/(1 − (1 + i)^−n)     a month: annuity of price P and residual value R over n months
    running = W·PUE·730 h·USD/kWh + kW·rack + staff/12  a month and accelerator; cooling is in the PUE
    month of break-even: the first m from which on Σ rent/(1 + i)^k ≥ Σ purchases + Σ running/(1 + i)^k, k to m

i is the interest a month, (1 + a year's)^(1/12) − 1; a sale before the n months is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from rooflinekit.decision.economics.price import Purchase
from rooflinekit.model.types.errors import SpecError, WorkloadError
from rooflinekit.specs.files import read_yaml
from rooflinekit.specs.section import Section, described


def read_owning(path: str | PathLike[str]) -> Purchase:
    """Read a YAML of the inputs of a `Purchase`; purchase and years are needed.

    Raises SpecError for an unknown or missing key, and for a value without sense.
    """
    section = Section(Path(path), "", read_yaml(Path(path)))
    required, known = described(Purchase)
    section.expect(required, known)
    try:
        owning = Purchase.checked(**section.data)
        for key, most in (("residual", 1.0), ("interest", 1.0), ("pue", 10.0)):
            if getattr(owning, key) > most:
                raise WorkloadError(f"{key} must be at most {most:g}, not {getattr(owning, key):g}")
        if not 1.0 <= 12.0 * owning.years <= 1200.0:
            raise WorkloadError("years must be from a month to a century")
    except WorkloadError as error:
        raise SpecError(f"{path}: {error}") from None
    return owning


@dataclass(frozen=True)
class Tco:
    """Renting against owning: dollars a month of one accelerator, and of the fleet over the years of use, discounted.

    break_even_month: None where renting stays cheaper for all the years.
    """

    inputs: Purchase
    capital_usd: float
    running_usd: float
    rent_usd: float
    own_usd: float
    break_even_month: int | None


def rent_or_buy(owning: Purchase, gpus: Sequence[int], rents: Sequence[float], watts: float, rated: float) -> Tco:
    """Compare a fleet that is bought as it grows with rents, month by month; the last month goes on.

    Args:
        owning: the inputs.
        gpus: accelerators that are needed in each month.
        rents: USD of each month.
        watts: mean power of a board with its share of the host.
        rated: the same with the board at its limit.

    Returns:
        Sums over the years of use, at the interest; of what is bought later its annuities until then.

    >>> owning = Purchase(12_000.0, 2.0)
    >>> rent_or_buy(owning, [2], [2_000.0], 0.0, 0.0).break_even_month  # 24,000 USD at 2,000 a month
    12
    """
    i, running = owning.month_interest, owning.running(watts, rated)
    rent = own = bought = cash = 0.0
    owned, month_of = 0, None
    for month in range(1, owning.months + 1):
        place = min(month, len(gpus)) - 1
        now, worth = max(gpus[place], owned), (1.0 + i) ** -month
        bought += (now - owned) * owning.purchase * worth * (1.0 + i)
        owned = now
        rent += rents[place] * worth
        own += owned * (owning.capital + running) * worth
        cash += owned * running * worth
        month_of = (month_of or month) if rent >= bought + cash else None
    return Tco(owning, owning.capital, running, rent, own, month_of)
