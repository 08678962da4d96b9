"""linnet's tokenizers as Transformers tokenizers, with the same ids."""

from typing import Any

from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from linnet.data.tokenizer import MASK, SPECIALS, Tokenizer

_BOS, _PAD, _EOS, _UNK = SPECIALS


def convert_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """A tokenizer that `AutoTokenizer` loads; nothing is added around a text, and padding is on the left.

    In a text of words, `</s>` is the end of a line and so an ordinary word. Elsewhere it ends a document.
    """
    special: dict[str, Any] = {"bos_token": _BOS, "pad_token": _PAD, "unk_token": _UNK}
    if tokenizer.kind != "word":
        special["eos_token"] = _EOS
    if tokenizer.mask is not None:
        special["mask_token"] = MASK
    return PreTrainedTokenizerFast(
        tokenizer_object=Backend.from_str(tokenizer.to_library()),
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        **special,
    )
