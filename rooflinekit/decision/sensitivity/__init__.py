"""Levers: elasticities of a deployment's answers, and moves ranked by what they gain."""
