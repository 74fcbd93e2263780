"""Who scores the chunks: this process's threads, or others."""
