"""A cluster's Gateway as the data plane: weights in an HTTPRoute, counts from the pods."""
