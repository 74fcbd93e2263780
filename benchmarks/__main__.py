"""Run every benchmark and print its table: `make bench`."""

from __future__ import annotations

from benchmarks.online import main

if __name__ == "__main__":
    main()
