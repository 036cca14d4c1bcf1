"""Models of the Hugging Face hub, from a server on this machine that speaks its routes."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from rooflinekit.specs.models import load_model, typed_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
MATRICES = 2 * (4 * 256 * 256 + 3 * 256 * 512)  # of two layers, a byte each; norms, embedding and head have two
WEIGHTS = MATRICES + 2 * (5 * 256 + 2 * 256 * 1000)


def safetensors(size):
    """A file whose header tells of one tensor of that many bytes, which are not there: nobody may ask for them."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header


FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "hf_quant_config.json": json.dumps({
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    }).encode(),
    "model.safetensors.index.json": json.dumps({
        "metadata": {"total_size": 1}, "weight_map": {"a": "a.safetensors", "b": "b.safetensors"},
    }).encode(),
    "a.safetensors": safetensors(WEIGHTS - 1000),
    "b.safetensors": safetensors(1000),
}  # fmt: skip


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, str]] = []  # noqa: RUF012 - one list for all requests

    def do_GET(self):
        self.asked.append((self.command, self.path))
        *repository, name = self.path.lstrip("/").split("/")
        body = FILES.get(name) if repository[:3] == ["org", "tiny", "resolve"] else None
        if self.path.partition("?")[0] in ("/api/models/org/tiny", "/api/models/org/tiny/revision/main"):
            body = json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": [], "tags": []}).encode()
        if body is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if repository[:2] == ["org", "tiny"] else "RepoNotFound")
            body = b""
        else:
            first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
            self.send_response(206 if last else 200)
            body = body[int(first) : int(last) + 1] if last else body
            self.send_header("ETag", f'"{hashlib.sha1(FILES.get(name, b"")).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *words):
        pass


@pytest.fixture
def ask(tmp_path):
    """ask(*words): the command line with that hub; ask.server ends it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    env = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_ETAG_TIMEOUT": "1",
    }  # fmt: skip
    for name in ("HF_HUB_CACHE", "HF_ASSETS_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"):
        env.pop(name, None)
    Hub.asked.clear()

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "rooflinekit", *words], env=env, capture_output=True, text=True, check=False
        )

    run.server = server
    yield run
    server.shutdown()
    server.server_close()


def test_a_typed_id_is_fetched_once_and_answered_offline_afterwards(ask):
    pytest.importorskip("huggingface_hub")
    shown = ask("show", "org/tiny", "--format", "json")
    assert shown.returncode == 0, shown.stderr
    assert f"{WEIGHTS:,} bytes of tensors; {WEIGHTS:,} are costed" in shown.stdout
    assert {path.rpartition("/")[2] for _, path in Hub.asked} >= set(FILES)
    asked = len(Hub.asked)
    ask.server.shutdown()
    ask.server.server_close()
    again = ask("estimate", "org/tiny", "--format", "json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["inputs"]["kv"] == "fp8"  # as hf_quant_config.json says
    assert len(Hub.asked) == asked
    unknown = ask("estimate", "org/nobody")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    assert "unknown model 'org/nobody'; hf:org/nobody: cannot be downloaded" in unknown.stderr
    assert "save its config.json and give the path" in unknown.stderr


def test_a_typo_is_one_line_with_the_nearest_names(ask):
    pytest.importorskip("huggingface_hub")
    wrong = ask("estimate", "meta-llama/Llama-3.1-8")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "cannot be downloaded" in wrong.stderr
    assert "nearest known: llama-3.1-8b" in wrong.stderr


def test_only_what_a_person_types_is_fetched(monkeypatch, tmp_path):
    """Of names that are known, paths, and names without the extra nothing is asked; nor by load_model, for programs."""
    from rooflinekit.specs import models

    fetched = []
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(models, "fetch", fetched.append)
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    assert typed_model("org/name") == "org/name"
    monkeypatch.setattr(models, "find_spec", lambda name: True)
    for known in ("llama-3-8b", "meta-llama/Meta-Llama-3-8B", "Qwen/Qwen3-8B-AWQ", "a/b/c", "hf:org/name"):
        assert typed_model(known) == known
    with pytest.raises(models.UnknownNameError):
        load_model("org/name")
    assert fetched == []
    assert typed_model("org/name") == "org/name"
    assert fetched == ["org/name"]
