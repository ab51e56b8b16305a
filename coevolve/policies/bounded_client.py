"""An HTTP client for OpenAI's with a deadline for the whole response, and a bound on its length."""

import threading
import time
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import httpx2
from openai import DefaultHttpxClient

#: The rest of a longer body, in bytes, is not read: what is left is no JSON, unless it was blanks.
MAX_BYTES = 16 << 20
#: Headers that do not describe a body that was decoded and cut.
_OF_ENCODING = {"content-encoding", "content-length", "transfer-encoding"}


class BoundedClient(DefaultHttpxClient):
    """Ends each request `seconds` after its start with `httpx2.ReadTimeout`, at whatever point it is.

    httpx's own time-out begins anew with each byte.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """The response with its body, in a thread that is left behind if the server takes too long."""
        response: Future[httpx2.Response] = Future()
        threading.Thread(target=self._answer, args=(response, request, options), daemon=True).start()
        try:
            return response.result(self._seconds)
        except TimeoutError:
            raise self._late(request) from None

    def _late(self, request: httpx2.Request) -> httpx2.ReadTimeout:
        return httpx2.ReadTimeout(f"no whole response in {self._seconds:g} s", request=request)

    def _answer(self, response: Future[httpx2.Response], request: httpx2.Request, options: dict[str, Any]) -> None:
        try:
            response.set_result(self._receive(request, options))
        except Exception as error:  # noqa: BLE001 - the caller raises it
            response.set_exception(error)

    def _receive(self, request: httpx2.Request, options: dict[str, Any]) -> httpx2.Response:
        deadline, redirects, content = time.monotonic() + self._seconds, 0, b""
        options |= {"stream": True, "follow_redirects": False}  # the body of a redirection would be read as a whole
        response = super().send(request, **options)
        while response.next_request and redirects < self.max_redirects:
            response.close()
            response, redirects = super().send(response.next_request, **options), redirects + 1
        with closing(response):
            for chunk in response.iter_bytes():
                content += chunk
                if time.monotonic() > deadline:  # on a busy machine before the caller has seen its own
                    raise self._late(request)
                if len(content) > MAX_BYTES:
                    break
        headers = [(name, value) for name, value in response.headers.multi_items() if name not in _OF_ENCODING]
        return httpx2.Response(response.status_code, headers=headers, content=content, request=response.request)
