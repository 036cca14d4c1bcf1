"""The physics of a deployment: work, time, memory and traffic. Nothing here opens a file."""
