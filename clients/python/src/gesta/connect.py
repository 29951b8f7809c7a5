"""Making the connection to a store: its servers, who calls, and whom the caller believes."""

from __future__ import annotations

import base64
import os
import ssl
from typing import Optional, Union

from .retry import Policy
from .servers import Server, Servers
from .store import Store
from .transport import Transport


def connect(
    *servers: str,
    token: Optional[str] = None,
    user: Optional[str] = None,
    password: Optional[str] = None,
    ca_file: Union[str, "os.PathLike[str]", None] = None,
    plain_http: str = "loopback",
    policy: Optional[Policy] = None,
) -> Store:
    """The store behind one or more servers; several are the nodes of one cluster. Nothing is sent yet.

    One server is asked until it does not answer, then the next one. Who calls is shown by a `token`, or by `user` and
    `password`. `ca_file` names the certificate of the authority to believe, in place of the system's. Over `http` a
    token or a password goes only to servers on this machine, unless `plain_http` is "anywhere".

    >>> gesta.connect("http://127.0.0.1:2113")                                               # doctest: +SKIP
    >>> gesta.connect("https://a:2113", "https://b:2113", token=token, ca_file="ca.pem")     # doctest: +SKIP
    """
    if not servers:
        raise ValueError("servers must name at least one server, as http://127.0.0.1:2113")
    if plain_http not in ("loopback", "anywhere"):
        raise ValueError(f"plain_http must be 'loopback' or 'anywhere', and is {plain_http!r}")
    given = [Server.parse(url) for url in servers]
    if len(set(given)) < len(given):
        raise ValueError(f"servers must be named once each: {', '.join(servers)}")
    authorization = _authorization(token, user, password)
    for server in given:
        shows_secrets = authorization and not server.is_encrypted and not server.is_on_this_machine
        if shows_secrets and plain_http == "loopback":
            raise ValueError(
                f"{server} must begin with https://, for a token or a password would travel there as plain text; where "
                "nobody can listen on the way, plain_http='anywhere' allows it"
            )
    is_encrypted = any(server.is_encrypted for server in given)
    tls = _believing(ca_file) if is_encrypted else None
    return Store(Transport(Servers(given), authorization, tls, policy or Policy()))


def _believing(ca_file: Union[str, "os.PathLike[str]", None]) -> ssl.SSLContext:
    """Believes the authority in this file, or the system's."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ValueError(f"ca_file {str(ca_file)!r} cannot be used: {error.strerror or error}") from error


def _authorization(token: Optional[str], user: Optional[str], password: Optional[str]) -> Optional[str]:
    """The header that says who calls."""
    if (user is None) != (password is None):
        raise ValueError("user and password must be given together")
    if token is not None:
        if user is not None:
            raise ValueError("token must not be given beside user and password")
        token = token.strip()
        if not token or not token.isascii() or not token.isprintable():
            raise ValueError("token must be printable ASCII text, as `gesta token create` prints it")
        return f"Bearer {token}"
    if user is None:
        return None
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
