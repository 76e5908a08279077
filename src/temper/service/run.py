"""Bind the service to an address, run it, and stop it with every accepted request answered."""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Callable
from contextlib import ExitStack
from ipaddress import ip_address

import uvicorn

from temper.errors import SettingError
from temper.service.settings import ServiceSettings
from temper.service.web import Service

TOKEN = "TEMPER_TOKEN"
"""Environment variable of the token that requests must bear."""
LEAST_TOKEN = 16
"""Characters of a token, at the least."""


def token_of_environment() -> str | None:
    """Return the token that requests must bear, None if none is set."""
    token = os.environ.get(TOKEN, "")
    if not token:
        return None
    if not re.fullmatch(rf"[!-~]{{{LEAST_TOKEN},}}", token):
        raise SettingError(
            f"{TOKEN} must have {LEAST_TOKEN} ASCII characters or more and no space. Make one "
            "with: python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token


def bind(settings: ServiceSettings, *, token: str | None) -> socket.socket:
    """Take the address, so that a wrong one is an error before the model is loaded.

    Raises:
        SettingError: It cannot be taken, or others could reach it and there is no token.
    """
    if token is None and not is_local(settings.host):
        raise SettingError(
            f"--host {settings.host} can be reached by others, and {TOKEN} is not set: anybody "
            "could ask. Set it to a secret that requests then bear (Authorization: Bearer ...), or "
            "leave --host out."
        )
    with ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                settings.host, settings.port, type=socket.SOCK_STREAM
            )[0]
            bound = stack.enter_context(socket.socket(family, kind, protocol))
            if os.name == "posix":
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError as error:
            raise SettingError(
                f"The service cannot listen at {settings.host}, port {settings.port}: "
                f"{error.strerror}. Give another --port or --host."
            ) from error
        stack.pop_all()
    return bound


def is_local(host: str) -> bool:
    """Return whether no other machine can reach a host.

    Example:
        >>> is_local("localhost"), is_local("127.0.0.1"), is_local("::1"), is_local("0.0.0.0")
        (True, True, True, False)
    """
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def address_of(bound: socket.socket) -> str:
    host, port, *_ = bound.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def server_of(service: Service) -> uvicorn.Server:
    settings = service.settings
    return uvicorn.Server(
        uvicorn.Config(
            service.application,
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=settings.connections,
            timeout_graceful_shutdown=math.ceil(settings.stop_seconds),
            ws="none",
        )
    )


def serve(service: Service, bound: socket.socket, *, stopped: Callable[[Service], None]) -> None:
    """Answer requests until SIGTERM or Ctrl-C, and then those that were accepted."""
    try:
        server_of(service).run(sockets=[bound])
    finally:
        stopped(service)
