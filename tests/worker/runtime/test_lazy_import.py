"""What a process of the gateway leaves out of the libraries that it loads."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

_ASYNCIO = """
import sys
from metamcp_worker.runtime import lazy_import

lazy_import.import_without("ssl", "asyncio")
assert "ssl" not in sys.modules
import asyncio

async def talk():
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()

asyncio.run(talk())
print("ssl" in sys.modules)
import ssl
print(ssl.create_default_context().check_hostname)
"""

_LATE = """
import asyncio, sys
from metamcp_worker.runtime import lazy_import

known = sys.modules["ssl"]
lazy_import.import_without("ssl", "asyncio")
lazy_import.import_without("ssl", "no_such_module")
print(sys.modules["ssl"] is known)
try:
    lazy_import.import_without("no_such_library", "no_such_module")
except ModuleNotFoundError as error:
    print(error.name, "no_such_library" in sys.modules)
"""

_WHEN_USED = """
import sys, threading
from metamcp_worker.runtime import lazy_import

lazy_import.import_when_used("asyncio.sslproto", "locale", "msgspec.inspect", "no_such_module")
import asyncio, msgspec, locale, subprocess

def unread():
    names = "asyncio.sslproto", "locale", "msgspec.inspect"
    return [name for name in names if len(vars(sys.modules[name])) < 9]

print(*unread())
barrier, found = threading.Barrier(8), []
def ask():
    barrier.wait()
    found.append(locale.getencoding)
threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(found), len(set(found)), asyncio.sslproto is asyncio.base_events.sslproto)
print(asyncio.sslproto.SSLProtocol.__name__)
print(msgspec.json.schema(int)["type"], *unread(), hasattr(locale, "no_such_name"))
try:
    import no_such_module
except ModuleNotFoundError as error:
    print(error.name)
"""

_EMPTY = """
import sys
from metamcp_worker import oauth
from metamcp_worker.runtime import lazy_import

flow = lazy_import.import_from(oauth.WHOLE_SDK, "metamcp_worker.oauth.flow")
print(flow.OAuthClientProvider.__module__, "mcp" in sys.modules, "mcp.server" in sys.modules)
import mcp
from mcp.client import auth
print(mcp.ClientSession.__name__, auth.OAuthClientProvider is flow.OAuthClientProvider)
lazy_import.import_from(oauth.WHOLE_SDK, "metamcp_worker.oauth.flow")
print(sys.modules["mcp"] is mcp)
"""

_STARVED = """
import resource, sys
from metamcp_worker.runtime import lazy_import
from metamcp_supervisor.config import naming

lazy_import.import_when_used("locale")
import locale
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
try:
    locale.getencoding
except OSError as error:
    print(error.errno)
print(naming.hint("gitt", ["git"]).replace(" ", "-"))
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
print(locale.getencoding() != "", naming.hint("gitt", ["git"]).replace(" ", "-"))
"""

_NURSERY = """
import importlib, sys
from metamcp_worker import __main__

__main__.main(["nursery"])
for name in sys.modules["metamcp_worker.runtime.nursery"].PRELOAD:
    importlib.import_module(name)
print(*sys.modules)
"""


def test_asyncio_works_without_tls_and_tls_without_asyncio() -> None:
    assert _said(_ASYNCIO) == ["False", "True"]


def test_nothing_is_hidden_that_is_there_already_or_for_longer_than_the_import() -> None:
    assert _said(_LATE) == ["True", "no_such_module", "False"]


def test_the_flow_of_oauth_comes_without_the_rest_of_the_sdk_which_can_be_imported_later() -> None:
    """The rest takes half a second, and 16 MiB."""
    without = ["mcp.client.auth.oauth2", "False", "False"]
    assert _said(_EMPTY) == [*without, "ClientSession", "True", "True"]


def test_the_nursery_has_loaded_nothing_that_no_worker_needs() -> None:
    """Each is a quarter of a MiB or more."""
    loaded = set(_said(_NURSERY))
    assert {"metamcp_worker.front.run", "metamcp_worker.child.run"} < loaded
    assert loaded.isdisjoint({"multiprocessing", "pickle", "shutil", "typing_extensions"})


def test_what_is_hardly_used_is_read_once_when_somebody_asks_for_something_of_it() -> None:
    unread = ["asyncio.sslproto", "locale", "msgspec.inspect"]
    found = [*unread, "8", "1", "True", "SSLProtocol", "integer", "False", "no_such_module"]
    assert _said(_WHEN_USED) == found


def test_what_cannot_be_read_for_want_of_a_descriptor_is_read_later() -> None:
    assert _said(_STARVED) == ["24", "there-are:-git", "True", "did-you-mean-'git'?"]


def _said(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.split()
