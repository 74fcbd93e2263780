"""Keys and credentials of NATS as its own tools write them: an operator, an account, a user."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]

_LIMITS = ("subs", "conn", "leaf", "data", "payload", "imports", "exports")
_WITHOUT_LIMITS: dict[str, Any] = dict.fromkeys(_LIMITS, -1) | {"wildcards": True}
_JETSTREAM = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)


class Key:
    """A new pair of keys; `prefix` says of whom."""

    def __init__(self, prefix: int) -> None:
        self.seed: str = nkeys.encode_seed(os.urandom(32), prefix).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed.encode()))
        self.name: str = self._pair.public_key.decode()

    def vouches(self, subject: Key, **nats: Any) -> str:
        """The token in which this key says what `subject` may do."""
        claims = {"jti": "1", "iat": 1, "iss": self.name, "sub": subject.name, "name": "x"}
        head = _encoded({"typ": "JWT", "alg": "ed25519-nkey"})
        text = f"{head}.{_encoded(claims | {'nats': {'version': 2, **nats}})}"
        return f"{text}.{_base64(self._pair.sign(text.encode()))}"


@dataclass(frozen=True, slots=True)
class Accounts:
    """The configuration of a server that knows one user only, and that user's file."""

    config: Path
    proof: Path


def user_by_key(folder: Path) -> Accounts:
    """A user that is known by a key; `proof` is the seed."""
    user = Key(nkeys.PREFIX_BYTE_USER)
    config, proof = folder / "nkey.conf", folder / "user.nk"
    config.write_text(f"authorization {{ users = [ {{ nkey: {user.name} }} ] }}\n")
    proof.write_text(f"{user.seed}\n")
    return Accounts(config, proof)


def user_by_token(folder: Path) -> Accounts:
    """A user of an operator's account; `proof` is a file as `nsc generate creds` writes it."""
    operator = Key(nkeys.PREFIX_BYTE_OPERATOR)
    account, system = Key(nkeys.PREFIX_BYTE_ACCOUNT), Key(nkeys.PREFIX_BYTE_ACCOUNT)
    user = Key(nkeys.PREFIX_BYTE_USER)
    itself = operator.vouches(operator, type="operator", system_account=system.name)
    ours = operator.vouches(account, type="account", limits=_WITHOUT_LIMITS | _JETSTREAM)
    theirs = operator.vouches(system, type="account", limits=_WITHOUT_LIMITS)
    token = account.vouches(user, type="user", pub={}, sub={}, subs=-1, data=-1, payload=-1)
    config, proof = folder / "operator.conf", folder / "user.creds"
    config.write_text(
        f"operator: {itself}\nresolver: MEMORY\nsystem_account: {system.name}\n"
        f"resolver_preload: {{ {account.name}: {ours}, {system.name}: {theirs} }}\n"
    )
    proof.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    return Accounts(config, proof)


def _encoded(value: Any) -> str:
    return _base64(json.dumps(value).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
