"""Round trips of a program that does not count them: a relay between it and its server that counts turns of speech."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

BUFFER_BYTES = 1 << 16


@dataclass(slots=True)
class Turns:
    """``count``: how often a client began to speak after its server had spoken, or for the first time."""

    port: int
    count: int = 0


@contextmanager
def counting(target: tuple[str, int]) -> Iterator[Turns]:
    """Relay connections to ``127.0.0.1:port`` on to ``target``."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ended, end = socket.socketpair()
        stack.enter_context(ended)
        turns = Turns(listener.getsockname()[1])
        relay = threading.Thread(target=_relay, args=(listener, ended, target, turns))
        relay.start()
        try:
            yield turns
        finally:
            end.close()
            relay.join()


@dataclass(slots=True)
class _Talk:
    """One connection; ``asking``: whether the client was the last to speak."""

    client: socket.socket
    server: socket.socket
    asking: bool = False


def _relay(listener: socket.socket, ended: socket.socket, target: tuple[str, int], turns: Turns) -> None:
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is ended:
                    return
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    talk = _Talk(stack.enter_context(client), stack.enter_context(socket.create_connection(target)))
                    for each in (talk.client, talk.server):
                        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        selector.register(each, selectors.EVENT_READ, talk)
                elif not _pass_on(key.fileobj, key.data, turns):
                    for each in (key.data.client, key.data.server):
                        if each.fileno() >= 0:
                            selector.unregister(each)
                            each.close()


def _pass_on(source: object, talk: _Talk, turns: Turns) -> bool:
    """False when the connection has ended."""
    if talk.client.fileno() < 0:
        return True  # ended by the other side's event of the same round
    asking = source is talk.client
    giver, taker = (talk.client, talk.server) if asking else (talk.server, talk.client)
    try:
        content = giver.recv(BUFFER_BYTES)
        taker.sendall(content)
    except OSError:
        return False
    turns.count += asking and not talk.asking and bool(content)
    talk.asking = asking
    return bool(content)
