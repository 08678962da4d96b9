"""Figures, heat maps and tables as data, and code that draws them; independent of models and runs."""
