"""A conversation or an agent's run: the history is sent again with every turn, and computed again unless it is cached.

Symbols: n turns, p tokens of system prompt, q tokens asked a turn (a question, a tool's result), a tokens answered.

    S_k = p + k·(q + a) + q,  k = 0 … n − 1       prompt of turn k: everything said before, and the question
    c_k = p + k·(q + a)  with a prefix cache (k ≥ 1; for k = 0 the p tokens if others share them), else 0
    time = Σ_k [ s(S_k, c_k) + a·t_d(C_k)/C_k ]   as in `token_prices`; C_k: sequences of that length that fit

Without a cache the prompts add up to n·(p + q) + (q + a)·n(n − 1)/2 tokens: the square of the turns.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.decision.economics.token_prices import token_times
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.mixing import InFlight, slots
from rooflinekit.model.types.errors import DoesNotFitError
from rooflinekit.model.types.numeric import Array


@dataclass(frozen=True)
class Dialogue:
    """Turns that share a history; counts in tokens.

    shared: the system prompt is in the cache before the first turn, because other dialogues use it too.
    """

    turns: int
    system: int
    asked: int
    answered: int
    shared: bool = False

    def prompts(self) -> tuple[Array, Array]:
        """Tokens of each turn's prompt, and of them those that were there before.

        >>> sent, before = Dialogue(3, 100, 10, 20).prompts()
        >>> sent.tolist(), before.tolist()
        ([110.0, 140.0, 170.0], [0.0, 130.0, 160.0])
        """
        import numpy as np  # noqa: PLC0415 - turns are an array

        before = self.system + np.arange(self.turns, dtype=float) * (self.asked + self.answered)
        sent = before + self.asked
        if not self.shared:
            before[0] = 0.0
        return sent, before


@dataclass(frozen=True)
class DialogueTime:
    """Seconds of a replica that a dialogue takes, by turn, with and without a prefix cache; tokens of all turns."""

    cached: Array
    recomputed: Array
    sent_tokens: float
    computed_tokens: float  #: of them, with the cache

    @property
    def saving(self) -> float:
        """Share of the time without a cache that the cache saves."""
        return 1.0 - float(self.cached.sum() / self.recomputed.sum())


def dialogue_time(predictor: Predictor, dialogue: Dialogue, running: float) -> DialogueTime:
    """Time of a replica that serves `running` such dialogues at once, or as many as its cache holds.

    The history stays in the cache from turn to turn (every look-up hits), and what it takes there while nobody
    computes is not charged.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> plain = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> ten = dialogue_time(plain, Dialogue(10, 1000, 100, 300), 32.0)
    >>> ten.sent_tokens, ten.computed_tokens  # 10 · 1100 + 400 · 45; the first prompt, and 9 questions
    (29000.0, 2000.0)
    >>> bool(ten.cached[0] == ten.recomputed[0]), bool(ten.cached[9] < ten.recomputed[9])
    (True, True)

    Raises DoesNotFitError if the last turn does not fit.
    """
    import numpy as np  # noqa: PLC0415

    sent, before = dialogue.prompts()
    room = np.asarray(slots(predictor, sent, float(dialogue.answered)))
    if room.min() < 1.0:
        longest = float(sent[-1]) + dialogue.answered
        raise DoesNotFitError(f"{predictor.plan.model.name}: not one dialogue of {longest:.0f} tokens fits in memory")
    users = np.minimum(room, running)
    with_cache, without = (
        np.asarray(token_times(predictor, InFlight(users, sent, float(dialogue.answered), cached)).request)
        for cached in (before, 0.0 * before)
    )
    computed = float((sent - before).sum())
    return DialogueTime(with_cache, without, float(sent.sum()), computed)
