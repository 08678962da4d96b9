"""Training: the loop, its optimizer and schedules, its logs, and run folders on disk."""
