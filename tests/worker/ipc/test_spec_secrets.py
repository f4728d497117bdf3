"""Values with secrets in them, as they get into a log by accident."""

import pytest
from msgspec import Struct, structs

from metamcp_worker.access.door import Credential
from metamcp_worker.ipc import codec, spec
from metamcp_worker.ipc.spec import SecretStruct, ServerSpec

SECRET = {"secrets", "key", "client_secret", "env", "headers", "options", "salt"}
KINDS = [
    kind for kind in vars(spec).values() if isinstance(kind, type) and issubclass(kind, Struct)
]


@pytest.mark.promise("M95")
def test_every_specification_with_a_secret_hides_it_from_its_repr() -> None:
    telling = {
        kind.__name__
        for kind in KINDS
        if SECRET & {field.name for field in structs.fields(kind)}
        and not issubclass(kind, SecretStruct)
    }
    assert telling == {"TlsSpec"}, "its key is the path of a file"
    assert repr(Credential("bearer", b"canary")) == "Credential(…)"


@pytest.mark.promise("M95")
def test_a_value_that_hides_its_secrets_crosses_a_pipe_whole() -> None:
    made = ServerSpec(name="a", env={"TOKEN": "canary"}, headers={"X": "canary"})
    assert "canary" not in f"{made} {made!r} {[made]}"
    assert codec.decode_as(ServerSpec, codec.dump(made)) == made
