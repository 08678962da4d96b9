"""Measurements of speed and memory, by a method that says how far it can be trusted."""
