"""The work of every kernel of a forward pass, each with its formula and source."""
