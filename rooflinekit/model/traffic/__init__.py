"""Requests that share a deployment, in closed form: mixing, queues, percentiles."""
