"""A page to look at: what a run reports, or what a store says, as HTML that needs nothing else."""
