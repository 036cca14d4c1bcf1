"""How long a page takes: to be written by a fresh process, and in a browser to be painted, redrawn and searched.

    python benchmarks/bench_report.py [--times 5]

Prints wall and CPU seconds of `rooflinekit report llama-3-8b --batch 32 --isl 2048`, bytecode cached (the aim is 2 s),
and in headless Chromium, if there is one: of the first paint (the aim is 0.5 s), of updates of the sliders (16 ms) and
of a sweep of 10,000 rows (50 ms), and of a search over all models and accelerators in the playground (50 ms).
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

import rooflinekit as rk

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from docs.generate.playground import FIRST, file_of, model_file, write_app
from rooflinekit.specs import names
from tests.report.browser import CHROMIUM, Browser, served

_SLIDERS = "for (const batch of [1, 7, 40, 300, 2000]) { change({ batch }); await frame(); note(); }"
_AXES = """for (const name of ["x", "y", "by"]) { const box = document.getElementById(`sweep-${name}`);
  for (const option of [...box.options].slice(0, 8)) {
    box.value = option.value; box.dispatchEvent(new Event("change")); note(); await frame(); } }"""

_SEARCH = """(async () => { const found = [], box = byId("find");
  for (const words of ["q", "qwen", "qwen3", "mi300", "b200", "llama 70", "zz", ""]) {
    const start = performance.now(); box.value = words; box.dispatchEvent(new Event("input"));
    found.push(performance.now() - start); await new Promise((done) => setTimeout(done, 100)); }
  return found; })()"""


def first_pages(folder: Path, times: int) -> None:
    """Fresh processes, the first of them unmeasured: it may have to compile."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    command = [sys.executable, "-m", "rooflinekit", "report", "llama-3-8b", "--batch", "32", "--isl", "2048",
               "--force", "--out", str(folder / "page.html")]  # fmt: skip
    walls, spent = [], []
    for place in range(times + 1):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=environment)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if place:
            walls.append(wall)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(f"first page      {statistics.median(walls):.2f} s wall, {statistics.median(spent):.2f} s CPU "
          f"(medians of {times}; least {min(walls):.2f} and {min(spent):.2f})")  # fmt: skip


def rows(count: int) -> pd.DataFrame:
    """A sweep with a cloud of its own in every pair of columns."""
    draw = np.random.default_rng(0)
    names = ("ttft_ms", "tpot_ms", "e2e_ms", "output_tok_s", "output_tok_s_per_user", "output_tok_s_per_gpu")
    counts = {"batch": draw.integers(1, 4096, count), "isl": draw.integers(1, 100_000, count)}
    answers = {name: draw.lognormal(4, 1, count) for name in names}
    words = {"model": "m", "gpu": draw.choice(list("abcde"), count), "fits": draw.random(count) > 0.2,
             "stable": draw.random(count) > 0.1}  # fmt: skip
    return pd.DataFrame(words | counts | answers)


def redraws(browser: Browser, page: Path, what: str, work: str) -> None:
    """Script time of every update, as the page itself measures it."""
    browser.size(1280, 900)
    browser.open(page)
    script = f"""(async () => {{
      const found = [], note = () => found.push(Number(document.documentElement.dataset.updateMs));
      const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 150)));
      {work} return found; }})()"""
    found = browser.value(script)
    print(f"{what:<15} {statistics.median(found):.0f} ms an update, at most {max(found):.0f} ({len(found)} updates)")


def paints(browser: Browser, page: Path, times: int) -> None:
    """First paints, as the browser measures them."""
    found = []
    for _ in range(times):
        browser.open(page)
        found.append(browser.value("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    print(f"first paint     {statistics.median(found):.0f} ms (median of {times}; at most {max(found):.0f})")


def searches(browser: Browser, folder: Path) -> None:
    """Words typed into the board of the playground, with all models; only the first one's file is there."""
    (folder / "models").mkdir(parents=True)
    write_app(folder, dict.fromkeys(names("model"), "0"), names("accelerator"))
    (folder / file_of(FIRST, "vllm", "0")).write_bytes(model_file(FIRST, ("h100-sxm",)))
    with served(folder) as address:
        browser.visit(f"{address}/index.html", "!!document.querySelector('.tile')")
        browser.wait("document.querySelectorAll('.holders button').length > 0")
        found = browser.value(_SEARCH)
    print(f"search          {statistics.median(found):.1f} ms, at most {max(found):.1f} ({len(found)} words)")


def main() -> None:
    """All of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        first_pages(folder, times)
        if CHROMIUM is None:
            print("chromium is not installed: redraws are not measured")
            return
        sweep = rk.write_report(folder / "sweep.html", sweep=rows(10_000)).path
        with Browser(folder / "profile") as browser:
            paints(browser, folder / "page.html", times)
            redraws(browser, folder / "page.html", "sliders", _SLIDERS)
            redraws(browser, sweep, "10,000 rows", _AXES)
            searches(browser, folder / "playground")


if __name__ == "__main__":
    main()
