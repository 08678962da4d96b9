"""Images: readers of public layouts and of folders, the embedded digits, and augmentation."""
