"""Bind the service to an address, run it, and stop it after all accepted requests."""

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
"""Environment variable with the bearer token that requests must send."""
LEAST_TOKEN = 16
"""Minimum number of characters of a token."""


def token_of_environment() -> str | None:
    """Return the token that requests must send; None if none is set."""
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
    """Bind to the address before the model is loaded, so that a wrong one fails at once.

    Raises:
        SettingError: If the address cannot be used, or other machines can reach it without a token.
    """
    if token is None and not is_local(settings.host):
        raise SettingError(
            f"--host {settings.host} can be reached from other machines, but {TOKEN} is not set. "
            "Set it to a secret, which requests must send (Authorization: Bearer SECRET), or leave "
            "--host out."
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
                f"{error.strerror}. Choose another --port or --host."
            ) from error
        stack.pop_all()
    return bound


def is_local(host: str) -> bool:
    """Return whether only this machine can reach a host.

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
    """Serve requests until SIGTERM or Ctrl-C, then finish those that were accepted."""
    try:
        server_of(service).run(sockets=[bound])
    finally:
        stopped(service)
