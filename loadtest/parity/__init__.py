"""One model asked in every way it can be asked, and whether the answers are the same."""
