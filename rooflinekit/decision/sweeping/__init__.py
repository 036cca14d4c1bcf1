"""Many scenarios: grids and tables, one process or many machines, and the best of them."""
