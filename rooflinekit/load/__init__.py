"""Clients and an engine that makes one step after another: a load is played, never approximated."""
