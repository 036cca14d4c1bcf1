"""Time of a kernel: one form a family, few parameters, each with a meaning and a bound."""
