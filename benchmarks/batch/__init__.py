"""`mlctl batch run` beside other engines to score a Parquet file on one machine."""
