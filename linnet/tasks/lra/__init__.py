"""The tasks of the Long Range Arena, one file each: `linnet train lra/listops`."""
