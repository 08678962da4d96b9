"""What a run has to show: figures as data with two renderers, and the report."""
