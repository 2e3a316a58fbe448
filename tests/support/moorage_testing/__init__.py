"""What tests of whole jobs share: jobs in processes of their own, and the oracle of the answer."""
