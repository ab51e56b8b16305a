"""A server that asks for the password by a method of its choice, and keeps every byte that a client sends."""

import contextlib
import socketserver
import struct
import threading

SALT = b"a" * 20
#: What each method's server sends after the client's greeting, one message after each answer.
MESSAGES = {
    "mysql_clear_password": [b"\xfemysql_clear_password\0"],
    "dialog": [b"\xfedialog\0\x02Password: "],
    "sha256_password": [b"\xfesha256_password\0" + SALT + b"\0", b"\x01no key"],
    "caching_sha2_password": [b"\xfecaching_sha2_password\0" + SALT + b"\0", b"\x01\x04", b"\x01no key"],
}
#: PROTOCOL_41, SECURE_CONNECTION and PLUGIN_AUTH; no TLS.
CAPABILITIES = 0x200 | 0x8000 | 0x80000
GREETING = (
    b"\x0a8.0.36\0" + struct.pack("<I", 1) + SALT[:8] + b"\0" + struct.pack("<H", CAPABILITIES & 0xFFFF) + b"\x2d\x02\0"
    + struct.pack("<H", CAPABILITIES >> 16) + bytes([21]) + bytes(10) + SALT[8:] + b"\0mysql_native_password\0"
)  # fmt: skip


@contextlib.contextmanager
def serving(method, socket=None):
    """The address of such a server for a user, on a port or a local `socket`, and the bytes that it got."""
    got = bytearray()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            for number, message in enumerate([GREETING, *MESSAGES[method]]):
                packet = struct.pack("<I", len(message))[:3] + bytes([2 * number]) + message
                self.request.sendall(packet)
                with contextlib.suppress(ConnectionError):
                    got.extend(self.request.recv(1 << 16))

    server = (
        socketserver.UnixStreamServer(str(socket), Handler)
        if socket
        else socketserver.TCPServer(("127.0.0.1", 0), Handler)
    )
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"user@{socket}" if socket else f"user@127.0.0.1:{server.server_address[1]}", got
        finally:
            server.shutdown()
            thread.join()
