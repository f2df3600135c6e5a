"""What a user asked for, checked before a row is read."""
