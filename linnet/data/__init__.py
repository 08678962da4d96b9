"""Text in, blocks of token ids out: corpora, tokenizers, packing and masking, without torch."""
