"""Each variant made, judged and timed, and one of them chosen by the goals."""
