"""LRA Text: is a film review positive or negative, judging by its first 4,000 bytes?"""

from pathlib import Path

from linnet.data.lra.sequences import Sequences, sequence_letter
from linnet.data.lra.text import default_text_path, read_lra_text
from linnet.registry import TASK
from linnet.tasks.lra.base import LraData, LraTask


@TASK.add("lra/text")
class Text(LraTask):
    """Two classes. A token is a byte."""

    classes = 2
    tokens = 257
    vocab_size = 512
    between = ""
    validates_on_test = True

    @staticmethod
    def places(data: LraData) -> dict[str, Path]:
        """The folder of the reviews in LINNET_DATA."""
        return {} if data.path is not None else {"path": default_text_path()}

    def symbol(self, token: int) -> str:
        """The character of a byte."""
        return sequence_letter(token)

    def read(self) -> dict[str, Sequences]:
        """The reviews, cut at `data.context` bytes."""
        data = self.data
        return read_lra_text(Path(data.path or default_text_path()), data.context, self.work("reading the reviews"))
