"""`mlctl batch run` beside other ways to score a Parquet file on one machine."""
