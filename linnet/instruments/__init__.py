"""Instruments: measurements of attention weights and gradients that show why a model works or fails, one file each."""

# Imported eagerly: a file and its function share a name, and the name must mean the function.
from linnet.instruments.attention_map import attention_map
from linnet.instruments.concentration import concentration
from linnet.instruments.entropy import entropy
from linnet.instruments.gradient_deviation import gradient_deviation
from linnet.instruments.kernel_concentration import kernel_concentration
from linnet.instruments.local_score import local_area, local_score, local_share
from linnet.instruments.lognormal_fit import lognormal_fit
from linnet.instruments.moment_matching import calibrate_moment_matching
from linnet.instruments.spectral_gap import spectral_gap
from linnet.instruments.temperature import temperature, temperature_of

__all__ = [
    "attention_map",
    "calibrate_moment_matching",
    "concentration",
    "entropy",
    "gradient_deviation",
    "kernel_concentration",
    "local_area",
    "local_score",
    "local_share",
    "lognormal_fit",
    "spectral_gap",
    "temperature",
    "temperature_of",
]
