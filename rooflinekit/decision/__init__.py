"""Purchases, changes, launches and sweeps: costs, levers, commands, grids and plans."""
