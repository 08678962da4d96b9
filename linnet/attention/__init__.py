"""Attention mechanisms, one file each; `base` and `features` hold what they share."""
