"""What to buy, change, launch or sweep: costs, levers, commands, grids and plans."""
