"""A headless Chromium, driven over its debugging pipe: opens pages from a folder, presses keys, reads what is shown."""

import base64
import json
import os
import subprocess
import time

import psutil

# `--no-sandbox`: Chromium's own sandbox refuses to start as root and in most containers; the pages here are ours.
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")
UNFOLD = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
#: Texts whose contrast with what lies behind them is below WCAG's AA for normal text.
FAINT = """[...document.querySelectorAll('body *')].filter((element) => {
  const direct = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!direct || element.closest('title, style, option') || !element.getClientRects().length) return false;
  const channels = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = (text) => channels(text).slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (each) => {
    const rect = each.closest('.loop') && each.parentElement.querySelector(':scope > rect');
    if (rect) return getComputedStyle(rect).fill;
    const colour = getComputedStyle(each).backgroundColor;
    return channels(colour)[3] === 0 ? behind(each.parentElement) : colour;
  };
  const style = getComputedStyle(element);
  const ends = [light(element.closest('svg') ? style.fill : style.color), light(behind(element))];
  return (Math.max(...ends) + 0.05) / (Math.min(...ends) + 0.05) < 4.5 || style.opacity < 1;
}).map((element) => element.outerHTML.slice(0, 200))"""


class Browser:
    """One page at a time; `close` ends the browser."""

    def __init__(self, program, profile):
        (there_read, here_write), (here_read, there_write) = os.pipe(), os.pipe()
        redirect = f'exec "$0" "$@" 3<&{there_read} 4>&{there_write} 2>/dev/null'
        command = ["bash", "-c", redirect, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(command, pass_fds=(there_read, there_write))
        os.close(there_read)
        os.close(there_write)
        self._write, self._read = os.fdopen(here_write, "wb"), os.fdopen(here_read, "rb")
        self._rest, self._number, self._session = b"", 0, None
        page = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        self.events = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **parameters):
        """The answer to one command of the debugging protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        self._write.flush()
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            if "method" in answer and self._session:
                self.events.append(answer)

    def open(self, page, address=""):
        """Open a file, at `#address`; returns the browser's CPU seconds until something is drawn."""
        return self.visit(f"{page.resolve().as_uri()}{address}")

    def visit(self, address):
        """Open an address; returns the browser's CPU seconds until something is drawn."""
        self.ask("Page.navigate", url="about:blank")
        self.events.clear()
        before = self._cpu_seconds()
        self.ask("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && !document.body.innerText.includes('Loading.')")
        return self._cpu_seconds() - before

    def _cpu_seconds(self):
        """Of all processes of the browser that still run."""
        main = psutil.Process(self._process.pid)
        times = [each.cpu_times() for each in (main, *main.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    def run(self, expression):
        """The value of a JavaScript expression."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression, polls=2000):
        """Wait until a JavaScript expression is true."""
        for _ in range(polls):
            if self.run(expression):
                return
            time.sleep(0.01)
        raise AssertionError(f"{expression} stays false: {self.text()[:2000]}")

    def text(self):
        """The text a reader sees."""
        return self.run("document.body.innerText")

    def picture(self):
        """The whole page as PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def press(self, key):
        """Press and release a key, such as `j`, `Enter` or `Escape`."""
        codes = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, "")}
        code, text = codes.get(key, (0, key))
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, text=text, windowsVirtualKeyCode=code)

    def requests(self):
        """Addresses that the page asked for since it was opened."""
        sent = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [address for address in sent if not address.startswith("about:")]

    def complaints(self):
        """What the page logged, and what it did not catch, since it was opened."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [event["params"] for event in self.events if event["method"] in kinds]

    def close(self):
        """End the browser."""
        self._write.write(json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        self._write.flush()
        self._process.wait()
        self._write.close()
        self._read.close()

    def _message(self):
        while b"\0" not in self._rest:
            piece = os.read(self._read.fileno(), 1 << 20)
            assert piece, "the browser ended"
            self._rest += piece
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)
