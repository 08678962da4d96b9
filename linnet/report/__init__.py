"""The HTML page about one run or several."""
