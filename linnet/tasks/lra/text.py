"""LRA Text: is a film review good or bad, from its first 4,000 bytes."""

from pathlib import Path

from linnet.data.lra.sequences import Sequences, letter
from linnet.data.lra.text import default_path, read_text
from linnet.registry import TASK
from linnet.tasks.lra.base import LraData, LraTask


@TASK.add("lra/text")
class Text(LraTask):
    """Two classes; a token is a byte."""

    classes = 2
    tokens = 257
    vocab_size = 512
    between = ""
    validates_on_test = True

    @staticmethod
    def places(data: LraData) -> dict[str, Path]:
        """The reviews in LINNET_DATA."""
        return {} if data.path is not None else {"path": default_path()}

    def symbol(self, token: int) -> str:
        """A byte, as a letter where it is one."""
        return letter(token)

    def read(self) -> dict[str, Sequences]:
        """Cut at `data.context` bytes."""
        data = self.data
        return read_text(Path(data.path or default_path()), data.context, self.work("reading the reviews"))
