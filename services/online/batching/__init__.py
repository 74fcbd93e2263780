"""Which requests run together, and when: the queue, its policy and the loop's side of it."""
