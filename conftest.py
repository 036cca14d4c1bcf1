"""Without PyTorch the harness is not collected for doctests, nor its GPU kernel without Triton: both are optional."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["validate/*.py"]
collect_ignore = [] if find_spec("triton") else ["validate/split_kv.py"]
