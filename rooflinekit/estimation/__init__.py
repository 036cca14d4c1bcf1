"""Names and keywords in, answers out: estimates, facts, remarks and frames of scenarios."""
