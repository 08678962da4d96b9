"""What a study is: its rows, each a system, and how they are run at each scale."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One system of a study: a preset or none, what is changed in the recipe, how many seeds, at which scales."""

    name: str
    preset: str | None
    sets: tuple[str, ...] = ()
    seeds: int = 1
    recipe: str = ""  # in place of the study's
    scales: tuple[str, ...] = ("cpu", "paper")


@dataclass(frozen=True)
class Study:
    """Runs that are compared: recipes and preset endings by scale, and what the CPU scale changes in its recipe."""

    title: str
    recipes: dict[str, str]
    endings: dict[str, str]
    cpu_sets: tuple[str, ...]
    rows: tuple[Row, ...]
    shared: str | None = None  # name of the folder of runs, where several studies read the same ones
    instruments: tuple[str, ...] = ()  # read when a run is done, and kept with it
    maps: int = 0  # rows of the attention maps of the first and the last layer that are kept too; 0: none are

    def results(self, name: str) -> str:
        """The folder among those of the runs where the study `name` leaves its results."""
        return "results" if self.shared is None else f"results-{name}"
