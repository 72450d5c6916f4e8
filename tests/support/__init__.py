"""What tests share: the stack they run on, and servers that make faults happen."""
