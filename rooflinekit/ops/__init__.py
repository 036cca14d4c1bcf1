"""Around engines that run: a server at played times, manifests, metrics and alerts; nothing below imports this room."""
