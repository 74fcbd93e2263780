"""The OpenAPI document of a served model."""
