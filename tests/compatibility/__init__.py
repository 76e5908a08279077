"""What earlier releases wrote, and that this one opens it."""
