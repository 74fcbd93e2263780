"""The batch runner: rows of a source, scored by the scorer that serves online, each exactly once.

A job is `job.py`: it plans units (`units.py`), skips those that a sink has committed, and gives the
others to an executor. An executor (`local_executor.py`, `ray_executor.py`) runs workers
(`worker.py`), each of which reads a unit, scores it (`scoring.py`, `answers.py`) and commits it.
`run.py` counts and limits.

- Sources (`sources.py`): files (`files.py`, `formats/`), tables and queries (`databases/query.py`).
- Sinks (`sinks.py`): part files (`folder.py` on `storage.py`), tables (`databases/sink.py`),
  precomputed answers (`precomputed_sink.py`).
- Beside jobs: `estimate.py` for time and cost, `spark.py` for a function of Spark's columns.
"""
