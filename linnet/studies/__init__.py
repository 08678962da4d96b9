"""Studies: one file per table or figure of a paper, run, recorded and rendered by one command."""
