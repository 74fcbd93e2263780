"""Compare two versions' answers to the same requests, and answers with their labels."""
