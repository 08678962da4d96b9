"""Tasks: data, output, loss and metric of what a model is trained for, one file each under `@TASK.add`."""
