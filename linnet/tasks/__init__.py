"""Tasks: the data, output, loss and metric that a model is trained with. One file each, registered by `@TASK.add`."""
