"""Requests that share a deployment: room for them, what a prompt adds, encoders apart, energy."""
