"""Without PyTorch the harness is not collected for doctests: it is optional."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["validate/*.py"]
