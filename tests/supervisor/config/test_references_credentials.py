"""Credentials that systemd lays out for the service, as files."""

from pathlib import Path

import pytest

from metamcp_supervisor.config import files
from metamcp_supervisor.config.references import Unresolved


def test_a_credential_is_a_file_by_its_name_without_the_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "api-key"
    path.write_text("s3cret\n")
    path.chmod(0o440)  # as systemd does it where the access list lets one user read
    assert files.credential(str(tmp_path), "api-key") == "s3cret"


@pytest.mark.parametrize("name", ["", ".", "..", "../api-key", "a/b"])
def test_a_path_is_no_name_of_a_credential(tmp_path: Path, name: str) -> None:
    with pytest.raises(Unresolved, match="is not the name of a credential"):
        files.credential(str(tmp_path), name)


def test_a_missing_credential_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unresolved, match="the credential api-key does not exist"):
        files.credential(str(tmp_path), "api-key")
    with pytest.raises(
        Unresolved, match=r"'api-key' is missing: \$CREDENTIALS_DIRECTORY is not set"
    ):
        files.credential("", "api-key")
