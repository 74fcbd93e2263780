"""What the command line and Python callers use: up, promote, status, scale, down."""
