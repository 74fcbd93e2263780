"""Rank 100 candidates for a user with one request: `python -m mlctl.examples.ranking.client`."""

from __future__ import annotations

import click
import httpx
import numpy as np

from mlctl.examples.ranking.__main__ import CANDIDATES, ITEMS, ranked, request


@click.command()
@click.option("--url", default="http://localhost:3000", show_default=True)
@click.option("--user", default=7, show_default=True)
def main(url: str, user: int) -> None:
    """Print the ten best of 100 random candidates."""
    candidates = np.random.default_rng().choice(ITEMS, CANDIDATES, replace=False)
    answer = httpx.post(f"{url}/predict", json=request(user, candidates)).raise_for_status()
    click.echo(f"The best for user {user}: {ranked(candidates, answer.json())}")


if __name__ == "__main__":
    main()
