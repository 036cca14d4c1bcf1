"""Headless Chromium by its DevTools protocol, over a websocket of the standard library; enough to look at a page."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from patience import PATIENCE

_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in _NAMES if (found := shutil.which(name))), None)
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
    "--disable-features=IsolateSandboxedIframes",  # so that errors inside a frame are told here too
)  # fmt: skip


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder on a plain web server of this machine; its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Browser:
    """One tab. Console errors, exceptions and requests are kept as they come."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=null, stderr=null, start_new_session=True)
        self._count, self.errors, self.requests, self._newest = 0, list[str](), list[str](), 0
        self._socket = _Websocket(_target(profile))
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(timeout=PATIENCE)
        with suppress(ProcessLookupError):  # its helpers outlive it, and still write to the profile
            os.killpg(self._process.pid, signal.SIGKILL)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A command and its result."""
        self._count += 1
        self._socket.write(json.dumps({"id": self._count, "method": method, "params": params}))
        while True:
            told = json.loads(self._socket.read())
            if told.get("id") == self._count:
                assert "error" not in told, told
                return dict(told["result"])
            self._note(told)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.executionContextCreated":
                self._newest = params["context"]["id"]
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def value(self, script: str, **where: Any) -> Any:
        """What an expression gives; promises are waited for."""
        told = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, **where)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def inside(self, script: str) -> Any:
        """The same in the frame that was made last."""
        return self.value(script, contextId=self._newest)

    def size(self, width: int, height: int) -> None:
        """Of the window."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, page: Path, state: str = "") -> None:
        """Load a file, and wait until its charts are drawn."""
        self.visit(f"{page.as_uri()}{state}")

    def visit(self, address: str, ready: str = "document.readyState === 'complete'") -> None:
        """Load an address, and wait until it is `ready` and its charts are drawn."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=address)
        self.wait(f"location.protocol !== 'about:' && {ready} && !document.getElementById('app')")
        self.settle()

    def wait(self, ready: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.value(ready):
            assert time.monotonic() < end, ready
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait for two frames and the front."""
        frames = "requestAnimationFrame(() => requestAnimationFrame(done))"
        self.value(f"new Promise((done) => setTimeout(() => {frames}, 120))")

    def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            number = {"Tab": 9, "Enter": 13, "ArrowLeft": 37}.get(key, 39)
            more = {"text": "\r"} if (kind, key) == ("keyDown", "Enter") else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=number, **more)

    def screenshot(self, out: Path) -> None:
        """The window as a PNG file."""
        out.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))


def _target(profile: Path) -> str:
    """Address of the tab, once there is one."""
    end, port = time.monotonic() + PATIENCE, profile / "DevToolsActivePort"
    while time.monotonic() < end:
        try:
            number = port.read_text(encoding="utf-8").split()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{number}/json/list", timeout=5) as told:
                tabs = [tab for tab in json.load(told) if tab["type"] == "page"]
            if tabs:
                return str(tabs[0]["webSocketDebuggerUrl"])
        except (OSError, IndexError, ValueError):
            pass
        time.sleep(0.05)
    raise TimeoutError("chromium did not open a tab")


class _Websocket:
    """Text frames to and fro (RFC 6455)."""

    def __init__(self, address: str) -> None:
        host, _, path = address.removeprefix("ws://").partition("/")
        name, port = host.split(":")
        self._socket = socket.create_connection((name, int(port)), timeout=PATIENCE)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._stream = self._socket.makefile("rb")
        while self._stream.readline().strip():
            pass

    def write(self, text: str) -> None:
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        head = b"\x81" + (bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + struct.pack(">H", size)
                          if size < 65536 else bytes([0x80 | 127]) + struct.pack(">Q", size))  # fmt: skip
        self._socket.sendall(head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(data)))

    def read(self) -> str:
        parts, last = list[bytes](), False
        while not last:
            first, size = self._stream.read(2)
            last, size = bool(first & 0x80), size & 0x7F
            if size >= 126:
                size = int.from_bytes(self._stream.read(2 if size == 126 else 8), "big")
            parts.append(self._stream.read(size))
        return b"".join(parts).decode()

    def close(self) -> None:
        self._stream.close()
        self._socket.close()
