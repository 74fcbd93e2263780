"""What holds for every test."""

from hypothesis import settings

# A test proves what is true, not how fast it was: this machine may be busy.
settings.register_profile("mlctl", deadline=None)
settings.load_profile("mlctl")
