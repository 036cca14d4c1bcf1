"""llama.cpp's server out of the wheel of xllamacpp, with the options of `llama-server` that the tests give."""

from __future__ import annotations

import argparse
import signal

_NUMBERS = ("port", "parallel", "ctx-size", "threads", "cache-ram")


def main() -> None:
    """Serve until a signal ends it."""
    from xllamacpp import CommonParams, Server  # type: ignore[import-not-found]  # not installed everywhere

    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--host")
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--kv-unified", action="store_true")
    for name in _NUMBERS:
        parser.add_argument(f"--{name}", type=int)
    said = parser.parse_args()
    params = CommonParams()
    params.model.path, params.hostnames, params.port = said.model, [said.host], said.port
    params.n_parallel, params.n_ctx, params.cache_ram_mib = said.parallel, said.ctx_size, said.cache_ram
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = said.threads
    params.endpoint_metrics, params.kv_unified = said.metrics, said.kv_unified
    server = Server(params)
    print(server.listening_address, flush=True)  # noqa: T201
    signal.pause()


if __name__ == "__main__":
    main()
