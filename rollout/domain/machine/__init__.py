"""From evidence to verdict to the next state of a rollout."""
