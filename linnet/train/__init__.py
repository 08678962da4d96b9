"""Training: the one loop, its optimizer and schedules, what it logs, and runs as folders on disk."""
