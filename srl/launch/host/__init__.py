"""What a process asks of its host, and of the other processes there: limits, memory, stacks, owners."""
