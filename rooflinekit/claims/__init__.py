"""Numbers that tutorials on LLM inference state, computed again: which hold, which hold under a condition, which do not."""

from rooflinekit.claims.claim import Case, Claim, Verdict

__all__ = ["Case", "Claim", "Verdict"]
