"""Money and energy: what an accelerator hour costs, and what a token takes of it."""
