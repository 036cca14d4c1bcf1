"""Where numbers come from: trees of formulas, tensors with their shapes."""
