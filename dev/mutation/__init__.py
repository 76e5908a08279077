"""What the tests reach, and what they notice: coverage and mutants, each a command."""
