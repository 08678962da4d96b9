"""`make prove`: linnet's promises of reliability, each with its trials; `promises` imports the files that hold them."""
