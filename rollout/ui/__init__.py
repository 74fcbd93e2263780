"""The page of `mlctl ui`: what a deployment serves, and how its rollouts go."""
