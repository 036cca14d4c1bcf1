"""CPU seconds of one estimate on the command line, over those of importing typer: `python benchmarks/bench_startup.py`.

Both are whole processes of this Python, in turns, the least of several each. Modules are compiled, as pip leaves them.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

RUNS = 15
TARGET = 3.0
COMMANDS = {
    "import typer": ["-c", "import typer"],
    "estimate": ["-m", "rooflinekit", "estimate", "llama3-8b", "--batch", "32"],
}


def cpu_seconds(words: list[str], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for words in COMMANDS.values():
            cpu_seconds(words, environment)
        least = dict.fromkeys(COMMANDS, float("inf"))
        for _ in range(RUNS):
            for name, words in COMMANDS.items():
                least[name] = min(least[name], cpu_seconds(words, environment))
    typer, estimate = least.values()
    print(f"import typer {typer:.3f} s, estimate {estimate:.3f} s, ratio {estimate / typer:.2f} (target {TARGET})")


if __name__ == "__main__":
    main()
