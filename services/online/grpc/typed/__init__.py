"""A gRPC service of each model's own, with its tensors as typed fields, beside the V2 protocol."""
