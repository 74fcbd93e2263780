"""The command line of the batch and stream runners; with it, a Bento and its image start them."""
