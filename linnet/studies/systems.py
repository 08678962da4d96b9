"""The systems that studies compare, by their names in tables, and settings that several studies share."""

from collections.abc import Mapping, Sequence

from linnet.figures.colors import COLORS
from linnet.models.presets import preset
from linnet.studies.trained import Row

SYSTEMS = {  # name in the tables: beginning of the preset's name
    "T2": "transnormer_t2",
    "vanilla": "vanilla",
    "T1": "transnormer_t1",
    "1+elu": "elu",
    "lln_diag": "lln_diag",
    "lln": "lln",
    "Performer": "performer",
    "cosFormer": "cosformer",
    "Linformer": "linformer",
    "Reformer": "reformer",
    "Nystromformer": "nystromformer",
    "Informer": "informer",
    "BigBird": "bigbird",
    "kernelized": "kernelized",
    "Skyformer": "skyformer",
    "Transformer-LS": "long_short",
    "FLASH": "flash",
    "FLASH-quad": "flash_quad",
}
FAMILIES = {  # panels of figures with many systems
    "TransNormer and LLN": ("T2", "T1", "norm only", "diag only", "lln", "lln_diag"),
    "Softmax and gated units": ("vanilla", "vanilla with LRPE", "vanilla in the T2 frame", "FLASH", "FLASH-quad"),
    "Features and low rank": (
        *("1+elu", "Performer", "cosFormer", "Linformer", "Nystromformer", "Skyformer", "kernelized"),
    ),
    "Windows and hashes": ("Transformer-LS", "BigBird", "Reformer", "Informer"),
}
PARTS = {"norm only": "norm", "diag only": "diag"}  # T2 with one of its two mechanisms in all layers
NORM_CONFOUND = "norm only also has LRPE, another norm and another FFN, so this says nothing about NormAttention alone"
LRPE = "model.options.softmax.positions=lrpe"
SHORT = (  # less than an epoch of WikiText-2, so no dropout: no token is seen twice
    "data.vocab_size=4096",
    "model.dropout=0.0",
    "train.steps=500",
    "train.warmup=50",
    "train.eval_every=100",
    "train.eval_batches=40",
    "train.save_every=100",
    "train.threads=1",
)


def system(name: str, seeds: int = 1) -> Row:
    """The row of a system with its preset."""
    return Row(name, {**SYSTEMS, **PARTS}[name], seeds=seeds)


def split_systems(names: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """The systems of each panel of a figure: all in one, or by family if there are too many to tell apart.

    Variants of one system have no families: if most names are such, they stay together.
    """
    listed = {name for family in FAMILIES.values() for name in family}
    others = tuple(name for name in names if name not in listed)
    if len(names) <= len(COLORS) or len(others) > len(names) / 2:
        return {"": names}
    panels = {**FAMILIES, "Others": others}
    found = {title: [name for name in names if name in family] for title, family in panels.items()}
    return {title: members for title, members in found.items() if members}


def t2_frame_of_systems(ending: str) -> tuple[str, ...]:
    """T2's settings around its attention, from its preset with this suffix: norm, gated FFN and its width."""
    t2 = preset(f"transnormer_t2{ending}")
    return tuple(f"model.{field}={getattr(t2, field)}" for field in ("norm", "ffn", "activation", "ffn_width"))
