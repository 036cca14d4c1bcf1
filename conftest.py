"""Without PyTorch the harness is not collected for doctests, nor without numba what it compiles: both are optional."""

from importlib.util import find_spec

_OPTIONAL = {"torch": "validate/*.py", "numba": "rooflinekit/load/pointers.py"}
collect_ignore_glob = [files for module, files in _OPTIONAL.items() if not find_spec(module)]
