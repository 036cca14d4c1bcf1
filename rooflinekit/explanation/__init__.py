"""Origins of numbers: trees of formulas, tensors with their shapes."""
