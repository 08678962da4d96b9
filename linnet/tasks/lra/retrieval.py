"""LRA Retrieval: do two papers of the ACL Anthology belong together? The model reads 4,000 bytes of each."""

from pathlib import Path

import numpy as np

from linnet.data.lra.retrieval import MISSING, Pairs, read_retrieval
from linnet.data.lra.sequences import Sequences, sequence_arrays_sha256, sequence_letter
from linnet.errors import InputError
from linnet.registry import TASK
from linnet.tasks.base import Batch, Indices
from linnet.tasks.lra.base import LraData, LraTask, make_lra_batch


class PairsTask(LraTask):
    """Two classes. The same model reads both documents; a token is a byte."""

    output = "two_tower"
    classes = 2
    tokens = 257
    vocab_size = 512
    between = ""
    pairs: dict[str, Pairs]

    @staticmethod
    def sequences(data: LraData) -> int:
        """Two documents; one where they are denoised."""
        return 1 if data.objective == "denoise" else 2

    def symbol(self, token: int) -> str:
        """The character of a byte."""
        return sequence_letter(token)

    def read_pairs(self) -> dict[str, Pairs]:
        """The pairs of each split, with documents cut at `data.context` bytes."""
        raise NotImplementedError

    def read(self) -> dict[str, Sequences]:
        """The documents of each split; the pairs are stored in `self.pairs`."""
        self.pairs = self.read_pairs()
        return {split: pairs.documents for split, pairs in self.pairs.items()}

    def fingerprint(self) -> dict[str, str]:
        """SHA-256 of each split: documents, pairs and labels."""
        return {
            split: sequence_arrays_sha256(
                {**pairs.documents.arrays("documents"), "pairs": pairs.pairs, "labels": pairs.labels}
            )
            for split, pairs in self.pairs.items()
        }

    def count(self, split: str) -> int:
        """Number of pairs or, when denoising, of documents."""
        return super().count(split) if self.denoises else len(self.pairs[split])

    def batch(self, split: str, samples: Indices, epochs: Indices) -> Batch:
        """`ids` (B,2,N), `labels` (B,) and, if there is padding, `key_mask` (B,2,N)."""
        if self.denoises:
            return super().batch(split, samples, epochs)
        pairs = self.pairs[split]
        ids, real = pairs.documents.rows(pairs.pairs[samples].ravel(), self.data.context)
        shape = (len(samples), 2, ids.shape[1])
        return make_lra_batch(np.ascontiguousarray(ids.reshape(shape)), real.reshape(shape), pairs.labels[samples])


@TASK.add("lra/retrieval")
class Retrieval(PairsTask):
    """The pairs of the benchmark, from its public tables."""

    def read_pairs(self) -> dict[str, Pairs]:
        """There is no default: `data.path` must name the folder of the tables."""
        data = self.data
        if data.path is None:
            raise InputError(f"data.path is not set: {MISSING}")
        return read_retrieval(Path(data.path), data.context, self.work("reading the pairs"))
