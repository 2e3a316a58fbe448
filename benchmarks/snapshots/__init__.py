"""What checkpoints of a large state cost: the pause, the upload, and the way back."""
