"""A chat-completions server over any policy of the kit, on a real socket; it can inject faults."""

import contextlib
import json
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from coevolve.policies.base import Conversation
from coevolve.records.episodes import Message, Sampling

KEY = "sk-of-the-test"
MODEL = "tiny"


class ChatServer(ThreadingHTTPServer):
    """Answers at `url` with `policy`; `count(messages)` are the tokens of a prompt.

    Each request meets the next of `faults` first: a function that is given the handler, and returns whether it was the
    answer. `bodies` are all requests' own, `most` is how many were answered at once, each for `pause` seconds.
    """

    daemon_threads = True

    def __init__(self, policy, count=len, key=KEY):
        super().__init__(("127.0.0.1", 0), Chat)
        self.policy, self.count, self.key = policy, count, key
        self.faults, self.bodies, self.pause = deque(), [], 0.0
        self.inside = self.most = 0
        self.lock, self.acting = threading.Lock(), threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


class Chat(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.bodies.append(body)
            server.inside += 1
            server.most = max(server.most, server.inside)
            fault = server.faults.popleft() if server.faults else None
        time.sleep(server.pause)
        if not (fault and fault(self)):
            self._chat(body)

    def send(self, status, value, kind="application/json", **headers):
        with self.server.lock:
            self.server.inside -= 1
        content = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        for name, header in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), header)
        self.end_headers()
        self.wfile.write(content)

    def error(self, status, message, code=None, **headers):
        self.send(status, {"error": {"message": message, "type": "error", "code": code}}, **headers)

    def _stream(self, completion, usage):
        """The answer as server-sent events, all at once."""
        reason = "length" if completion.truncated else "stop"
        deltas = [({"role": "assistant", "content": completion.text}, None), ({}, reason)]
        common = {"id": "chat", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
        chunks = [{**common, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in deltas]
        events = [json.dumps(chunk) for chunk in [*chunks, {**common, "choices": [], "usage": usage}]]
        self.send(200, "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]), kind="text/event-stream")

    def log_message(self, *_):
        """Log nothing."""

    def _chat(self, body):
        if self.path != "/v1/chat/completions" or body["model"] != MODEL:
            return self.error(404, f"The model `{body['model']}` does not exist", "model_not_found")
        if self.headers["Authorization"] != f"Bearer {self.server.key}":
            return self.error(401, f"Incorrect API key provided: {self.headers['Authorization']}", "invalid_api_key")
        messages = tuple(Message(**message) for message in body["messages"])
        sampling = Sampling(
            temperature=body["temperature"],
            top_p=body["top_p"],
            max_new_tokens=body.get("max_tokens") or body["max_completion_tokens"],
        )
        with self.server.acting:  # neither a policy nor a tokenizer is made for several threads
            tokens = self.server.count(messages)
            completion = self.server.policy.complete([Conversation("", body.get("seed", 0), messages, ())], sampling)[0]
        if completion.stop:
            return self.error(400, "This model's maximum context length is shorter.", "context_length_exceeded")
        usage = {"prompt_tokens": tokens, "completion_tokens": len(completion.token_ids)}
        if body.get("stream"):
            return self._stream(completion, usage | {"total_tokens": sum(usage.values())})
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": completion.text},
            "finish_reason": "length" if completion.truncated else "stop",
        }
        usage["total_tokens"] = sum(usage.values())
        names = {"model": f"{MODEL}-2026", "system_fingerprint": "fp_1"}  # of the snapshot that MODEL stands for
        answer = {"id": "chat", "object": "chat.completion", "created": 0} | names
        return self.send(200, {**answer, "choices": [choice], "usage": usage})


def refusing(status, message="no", code=None, **headers):
    """A fault: an error of that status."""
    return lambda chat: chat.error(status, message, code, **headers) or True


def closing(chat):
    """A fault: the connection ends without an answer."""
    with chat.server.lock:
        chat.server.inside -= 1
    chat.close_connection = True
    return True


def stalling(seconds):
    """A fault: the response comes after the time-out."""

    def stall(chat):
        time.sleep(seconds)
        return closing(chat)

    return stall


@contextlib.contextmanager
def serving(policy, count=len, key=KEY):
    """A server that runs meanwhile."""
    server = ChatServer(policy, count, key)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
