"""LRA Image: classify an image of 32 by 32 grey pixels, read as a sequence of 1,024 tokens."""

from pathlib import Path

from linnet.data.lra.image import CLASSES, PIXELS, default_image_path, read_lra_image
from linnet.data.lra.sequences import Sequences
from linnet.errors import InputError
from linnet.registry import TASK
from linnet.tasks.lra.base import LraData, LraTask


@TASK.add("lra/image")
class Image(LraTask):
    """Ten classes. A token is a grey level; with the rules "skyformer", black is padding."""

    classes = CLASSES
    tokens = 256
    vocab_size = 256
    padded = False

    @staticmethod
    def places(data: LraData) -> dict[str, Path]:
        """The folder of the images in LINNET_DATA."""
        return {} if data.path is not None else {"path": default_image_path()}

    def read(self) -> dict[str, Sequences]:
        """The pixels of each image, row by row."""
        data = self.data
        if data.context < PIXELS:
            raise InputError(f"data.context is {data.context}: an image has {PIXELS:,} pixels")
        return read_lra_image(Path(data.path or default_image_path()), self.work("reading the images"))
