"""The walk: every tensor of a prefill and of the decode step behind it, with its shape and the work that makes it."""
