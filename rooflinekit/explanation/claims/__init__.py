"""Numbers that tutorials on LLM inference state, computed again, with the verdict that follows."""

from rooflinekit.explanation.claims.claim import Case, Claim, Verdict

__all__ = ["Case", "Claim", "Verdict"]
