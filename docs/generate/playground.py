"""The playground: every model on every accelerator, as files that a plain web server serves.

python -m docs.generate.playground build/site/playground [MODEL ...]

The page and its scripts are those of a report. What the sliders call stands in a file of its own for each model and
engine, which the page fetches when these are first chosen; files are compressed here and unpacked by the page, so that
the server need not. A model whose specs and whose code are as they were is taken from build/playground.
"""

from __future__ import annotations

import gc
import hashlib
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any, cast

from rooflinekit.estimation.estimator import resolve
from rooflinekit.model.types.deployment import ENGINES, Deployment
from rooflinekit.model.types.errors import DtypeError
from rooflinekit.report.look import hues_of
from rooflinekit.report.markup import filled, packed, script_json
from rooflinekit.report.page.deployment import ADVICE, DOUBTS, LOOK, SENTENCES, PageDeployment, accountant, slider_data
from rooflinekit.report.page.offers import make_offers
from rooflinekit.report.page.plays import load_data
from rooflinekit.report.page.render import scripts, style
from rooflinekit.specs import load_accelerator, load_model, names
from rooflinekit.specs.calibration import calibration_names
from rooflinekit.version import __version__

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "docs" / "_site" / "playground"
STORE = ROOT / "build" / "playground"
FIRST = "llama-3-8b"
"""The model that an address without one shows."""

_PLACES = (*(("h100-sxm", tp) for tp in (1, 2, 4, 8)), ("h200-sxm", 8), ("b200-sxm", 8), ("b300-sxm", 8))
"""Where a model is shown first: the first of these accelerators and degrees that holds it."""


def first_deployment(model: str, engine: str = "vllm", gpus: Sequence[str] = ()) -> PageDeployment:
    """A model on the first of the usual machines that holds it, else on the last; or so on some others.

    DtypeError: none of them computes in the model's format.
    """
    places = [place for place in _PLACES if not gpus or place[0] in gpus] or [(gpu, 1) for gpu in gpus]
    found: PageDeployment | None = None
    for gpu, tp in places:
        try:
            found = PageDeployment.of(model, gpu, {"tp": tp, "batch": 32, "engine": engine})
        except DtypeError:
            if found is None and (gpu, tp) == places[-1]:
                raise
            continue
        if found.answer.memory.fits:
            break
    return cast("PageDeployment", found)


def engine_gpus(gpus: Sequence[str]) -> dict[str, list[str]]:
    """Engines with the accelerators on which the playground offers them: vLLM on all, others where they have a fit."""
    known = calibration_names()
    fitted = {engine: [gpu for gpu in gpus if f"{gpu}--{engine}" in known] for engine in ENGINES}
    return {"vllm": list(gpus)} | {engine: found for engine, found in fitted.items() if found and engine != "vllm"}


def model_file(model: str, gpus: Sequence[str], engine: str = "vllm") -> bytes:
    """What the page fetches for a model with an engine: deployments on accelerators that hold it, their functions."""
    collecting = gc.isenabled()
    gc.disable()  # nothing is released before the file is written
    try:
        deployed = first_deployment(model, engine, gpus if engine != "vllm" else ())
        data, functions = slider_data(make_offers(deployed.asked, (), gpus, ()), deployed, None)
    finally:
        if collecting:
            gc.enable()
    told = {"asked": data["asked"], "offers": data["offers"], "library": data["library"], "functions": functions}
    return packed(script_json(told))


@cache
def _code() -> bytes:
    """What all files depend on: the code of answers and pages, the accelerators, the engines."""
    found = hashlib.sha256()
    for folder in ("model", "specs", "estimation", "load", "decision/sensitivity", "report/page"):
        for path in sorted((ROOT / "rooflinekit" / folder).glob("**/*.[py][ya]*")):
            found.update(path.read_bytes())
    for path in sorted((ROOT / "hardware_specs").glob("**/*.yaml")):
        found.update(path.read_bytes())
    return found.digest()


def kept_file(part: tuple[str, str, Sequence[str]], store: Path) -> Path:
    """The file of a model with an engine in the store, made where it is not there."""
    model, engine, gpus = part
    spec = (ROOT / "model_specs" / f"{model}.yaml").read_bytes()
    key = hashlib.sha256(_code() + spec + " ".join((engine, *gpus)).encode())
    path = store / f"{key.hexdigest()[:24]}.gz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_bytes(model_file(model, gpus, engine))
        scratch.replace(path)
    return path


def write_playground(folder: Path, models: Sequence[str], gpus: Sequence[str], store: Path = STORE) -> None:
    """Write page, scripts and a file for each model and engine; files of earlier runs that it replaces are removed."""
    (folder / "models").mkdir(parents=True, exist_ok=True)
    files = dict[str, str]()
    engines, start = engine_gpus(gpus), time.perf_counter()
    parts = [(model, engine, engines[engine]) for model in models for engine in engines]
    for gpu in gpus:  # specs and calibrations are read once, before the processes part
        with suppress(DtypeError):
            resolve(FIRST, gpu, Deployment(), None)
    # A process ends with its model: that frees millions of nodes at once, where a collection would visit each.
    with Pool(initializer=gc.disable, maxtasksperchild=1) as pool:
        made = pool.imap(partial(kept_file, store=store), parts)
        for place, model in enumerate(models, 1):
            contents = {engine: next(made).read_bytes() for engine in engines}
            files[model] = hashlib.sha256(b"".join(contents.values())).hexdigest()[:8]
            for engine, content in contents.items():
                (folder / file_of(model, engine, files[model])).write_bytes(content)
            sys.stderr.write(f"\r{place} of {len(models)} models, {time.perf_counter() - start:.0f} s ")
            sys.stderr.flush()
    sys.stderr.write("\n")
    written = {file_of(model, engine, content) for model, content in files.items() for engine in engines}
    for old in (folder / "models").iterdir():
        if f"models/{old.name}" not in written:
            old.unlink()
    write_app(folder, files, gpus)


def file_of(model: str, engine: str, content: str) -> str:
    """Where the file of a model with an engine stands; the hash is of all files of the model, and in the page."""
    return f"models/{model}.{engine}.{content}.gz"


def write_app(folder: Path, files: dict[str, str], gpus: Sequence[str]) -> None:
    """The page and its scripts; and accelerators by vendor."""
    own = first_deployment(FIRST if FIRST in files else next(iter(files)))
    more: dict[str, Any] = {
        "engine": own.answer.engine, "process": own.asked.process, "words": SENTENCES, "look": LOOK, "advice": ADVICE,
        "doubts": DOUBTS, "hues": hues_of(gpus), "reference": None,
        "vendors": {gpu: load_accelerator(gpu).value.vendor for gpu in gpus},
        "runs": engine_gpus(gpus),
        "engines": list(engine_gpus(gpus)),
        "offers": {
            "models": {model: load_model(model).value.max_context for model in files}, "gpus": {}, "plans": {},
            "notes": [], "missing": {}, "formats": {}, "steps": [], "scenes": [], "moves": [], "asked": {},
        },
    }  # fmt: skip
    first, last = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("models.js", "board.js"))
    load = f"DATA.load = {script_json(load_data(None))};"
    packed_app = packed("\n".join((f"fill({script_json(more)});", first, *scripts(), load, last)))
    name = f"app.{hashlib.sha256(packed_app).hexdigest()[:8]}.gz"
    for old in folder.glob("app.*.gz"):
        old.unlink()
    (folder / name).write_bytes(packed_app)
    parts = {
        "style": style(),
        "accountant": accountant(),
        "app": name,
        "data": script_json({"asked": own.at, "files": files}),
        "version": __version__,
        "site": f"{os.environ['SITE_URL'].rstrip('/')}/" if os.environ.get("SITE_URL") else "../",
    }
    (folder / "index.html").write_text(filled(TEMPLATES / "index.html", parts), encoding="utf-8")
    loader = (TEMPLATES / "load.js").read_text(encoding="utf-8")
    (folder / "load.js").write_text(loader, encoding="utf-8")


if __name__ == "__main__":
    out, *chosen = sys.argv[1:]
    write_playground(Path(out), chosen or names("model"), names("accelerator"))
