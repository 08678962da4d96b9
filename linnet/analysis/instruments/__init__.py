"""Instruments: what attention weights and gradients say about why a model works or fails, one file each."""
