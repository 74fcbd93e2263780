"""V2 infer requests answered inside uvicorn's HTTP protocol, on BentoML's own port."""
