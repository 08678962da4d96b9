"""Models: one backbone, whose pattern of layers is data; `config` and `presets` import no torch."""
