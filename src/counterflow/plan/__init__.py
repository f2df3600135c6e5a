"""What a join will cost, before it runs."""
