"""What one replica of a deployment can hold: tokens of cache."""

from __future__ import annotations

from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.errors import DoesNotFitError

__all__ = ["kv_capacity_tokens"]

_LONGEST = 1 << 26  # tokens beyond which a cache that does not grow is not followed


def kv_capacity_tokens(predictor: Predictor, context: float, sequences: int) -> int:
    """Tokens that the cache of a replica holds, for sequences of about `context` tokens.

    The number that fits at this length times the longest length at which it still does; where layers stop growing
    with the context (windows, recurrent states), that is more than for longer sequences.

    Raises DoesNotFitError if not even one such sequence fits.
    """
    memory = predictor.memory
    fitting = float(memory.max_batch(context, context))
    if fitting < 1:
        raise DoesNotFitError(
            f"{predictor.plan.model.name} on {predictor.plan.system.accelerator.name} has no room for one request of "
            f"{context:.0f} tokens; use a larger tp, shorter requests or 8-bit weights"
        )
    low, high = int(context), 2 * int(context) + 2
    while high < _LONGEST and memory.max_batch(float(high), context) >= fitting:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if memory.max_batch(float(middle), context) >= fitting else (low, middle)
    return low * int(min(fitting, sequences) if high >= _LONGEST else fitting)
