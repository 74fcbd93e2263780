"""Several models as one: how they are put together, served and scored."""
