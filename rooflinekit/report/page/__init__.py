"""A report as one HTML file: the answer, charts, and sliders that evaluate exported coefficients in the browser."""
