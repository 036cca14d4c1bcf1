"""How long a kernel takes: one form a family, few parameters, each with a meaning and a bound."""
