"""What coordination costs as jobs, histories and fleets grow."""
