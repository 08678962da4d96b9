"""Figures, heat maps and tables as data, and what draws them; knows nothing of models or runs."""
