"""Speculative decoding: who drafts, how many tokens, and how many of them survive a verification."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.frozen import dataclass

METHODS = ("medusa", "eagle", "eagle3", "mtp", "ngram")
"""Drafts that are not a model of their own; any other name is a draft model's."""

MTP_ACCEPTANCE = 0.85
"""Acceptance of the one token that DeepSeek-V3's MTP layer drafts: the low end of 85 to 90 % (arXiv:2412.19437,
section 5.4.3)."""

MEASURED = {
    "mtp": (
        (0.92, 0.75, 0.5507, 0.8947, 0.8235, 0.6071),
        ((1.79, 1.93), (2.27, 2.73), (2.49, 3.39), (2.54, 3.97), (2.55, 4.41), (2.55, 4.80)),
    ),
    "eagle3": (
        (0.815, 0.7301, 0.7479, 0.7191, 0.7188, 0.4565),
        ((1.78, 1.84), (2.33, 2.52), (2.75, 2.97), (3.02, 3.41), (3.21, 3.72), (3.30, 3.76)),
    ),
}
"""Acceptance of each token that a head drafts in a row, those before it accepted; and for 1 to 6 drafted tokens the
fewest and most tokens a pass of any run. From median acceptance lengths of five runs with MTP layers
(DeepSeek-V4-Pro, GLM-5.2, Qwen3.5-397B) and six with EAGLE-3 heads (Kimi-K2.5, MiniMax-M3) on SPEED-Bench's
coding prompts, vLLM on B300 (InferenceX 843c6254, golden_al_distribution). Chat is accepted less often: with
heads of Llama-3.3-70B and seven drafted tokens 3.9 tokens a pass on MT-bench against 5.1 on HumanEval, by their
model card."""


def expected_tokens(acceptance: Sequence[float], draft_tokens: int) -> float:
    """Mean tokens that one pass of the target yields: 1 + α1 + α1·α2 + … + α1·…·αk.

    αi is the probability that drafted token i is accepted if those before it were; the last one given holds for all
    that follow. With one α it is (1 − α^(k+1))/(1 − α), equation 1 of Leviathan et al. 2023 (arXiv:2211.17192); the 1
    is the token that the target itself supplies.

    >>> expected_tokens((0.8,), 4), expected_tokens((0.9, 0.5), 2)
    (3.36, 2.35)
    """
    total = survives = 1.0
    for position in range(draft_tokens):
        survives *= acceptance[min(position, len(acceptance) - 1)]
        total += survives
    return total


def break_even_acceptance(cost: float, draft_tokens: int) -> float | None:
    """Acceptance α at which a round that costs `cost` plain decode steps yields as many tokens; None if none does.

    E(α) rises from 1 at α = 0 to k + 1 at α = 1, so the root of E(α) = cost is found by bisection.

    >>> break_even_acceptance(1.75, 2), break_even_acceptance(3.5, 2)  # 1 + 1/2 + 1/4
    (0.5, None)
    """
    if cost > draft_tokens + 1.0:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens((middle,), draft_tokens) < cost else (low, middle)
    return (low + high) / 2 if high < 1.0 else 1.0


@dataclass(frozen=True, slots=True)
class Speculation:
    """One choice of draft.

    draft: one of `METHODS`, or the name of a draft model; draft_tokens: tokens drafted in a row; acceptance: of each,
    as in `expected_tokens`; tree: tokens that one pass verifies where several candidates stand at each place (None:
    only the drafted row); tp: accelerators that share the draft model (None: as the target); assumed: the acceptance
    is a measured one of other models.
    """

    draft: str
    draft_tokens: int
    acceptance: tuple[float, ...]
    tree: int | None = None
    tp: int | None = None
    assumed: bool = False

    @property
    def method(self) -> str:
        """One of `METHODS`, or "draft" for a model."""
        return self.draft if self.draft in METHODS else "draft"

    @property
    def verified(self) -> int:
        """Drafted tokens that the target computes in one pass, besides the one it was sure of."""
        return self.tree or self.draft_tokens

    @property
    def tokens_per_pass(self) -> float:
        """Mean tokens that one pass yields."""
        return expected_tokens(self.acceptance, self.draft_tokens)

    @classmethod
    def read(cls, scenario: Mapping[str, Any]) -> Speculation | None:
        """Read draft, draft_tokens, acceptance, draft_tree and draft_tp; None without a draft.

        `acceptance` is a number, a list of them, or text such as "0.8,0.7,0.6"; without one, that of `MEASURED`. An MTP
        layer was trained to draft one token, so that is its default.

        >>> Speculation.read({"draft": "mtp"}).acceptance
        (0.85,)
        >>> round(Speculation.read({"draft": "eagle3", "draft_tokens": 3}).tokens_per_pass, 2)
        2.85
        """
        given = {key: value for key, value in scenario.items() if value is not None}
        if "draft" not in given:
            if given:
                raise InputError(f"{next(iter(given))} needs a draft: {', '.join(METHODS)}, or a model's name")
            return None
        name = str(given["draft"]).strip()
        name = name.lower() if name.lower() in METHODS else name
        if (told := given.get("draft_tokens", 1 if name == "mtp" else None)) is None:
            raise InputError(f"draft {name!r} needs draft_tokens: how many tokens are drafted in a row, such as 3")
        tokens = whole_number(told, "draft_tokens")
        tree, tp = (whole_number(given[key], key) if key in given else None for key in ("draft_tree", "draft_tp"))
        if tree is not None and tree < tokens:
            raise InputError(f"draft_tree={tree} has fewer tokens than draft_tokens={tokens}; use at least {tokens}")
        if tp is not None and name in METHODS:
            raise InputError(f"draft_tp is for a draft model; {name} is split as the target is")
        rates = _acceptance(given.get("acceptance"), name, tokens)
        return cls(name, tokens, rates, tree, tp, "acceptance" not in given)


def _acceptance(given: object, draft: str, tokens: int) -> tuple[float, ...]:
    if given is None:
        if draft == "mtp" and tokens == 1:
            return (MTP_ACCEPTANCE,)
        if draft in MEASURED and tokens <= len(MEASURED[draft][0]):
            return MEASURED[draft][0][:tokens]
        raise InputError(
            f"acceptance of draft {draft!r} with draft_tokens={tokens} depends on models and text; give your "
            "measurement: 0.7, or one a position, 0.8,0.7,0.6"
        )
    values: Any = given.split(",") if isinstance(given, str) else [given] if isinstance(given, Real) else given
    try:
        rates = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        rates = ()
    if not 1 <= len(rates) <= tokens or not all(0.0 <= rate <= 1.0 and math.isfinite(rate) for rate in rates):
        raise InputError(
            f"acceptance must be a number from 0 to 1, or one for each drafted token ({tokens} at most), not {given}"
        )
    return rates
