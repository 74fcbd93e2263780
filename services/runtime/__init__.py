"""What runs a model: its session, transforms and buckets, made warm and proved."""
