"""The tasks of GLUE (Wang et al. 2018): one file each."""
