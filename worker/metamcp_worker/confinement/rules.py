"""Files that a confined server gets, its environment, and what the kernel cannot keep it from.

Owns: the choice of paths by profile, command, environment and configuration; the variables of
launchers. Never: looking at files (`launch`, which passes a `Look`), putting rules in force.

Theory. A rule allows a path and everything below it, and nothing takes away from it again. So a
folder that holds a path to be hidden is granted as its members without that path. Paths that the
operator wrote are taken as written. Paths that are found from these, such as the project of a
script, are never a folder as wide as a home. Programs get what programs are made of: the prefix of
an interpreter, a virtual environment with its base, `node_modules`, a project.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from posixpath import basename, dirname, isabs, join, normpath
from typing import NamedTuple, Protocol

from metamcp_worker.ipc.spec import ConfinementSpec

BASE = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/nix/store", "/gnu/store",
    "/run/current-system", "/run/systemd/resolve", "/run/NetworkManager", "/run/resolvconf",
    "/var/lib/ca-certificates", "/sys/devices/system", "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage", "/proc/cpuinfo", "/proc/filesystems", "/proc/loadavg",
    "/proc/meminfo", "/proc/stat", "/proc/sys", "/proc/uptime", "/proc/version",
)  # fmt: skip
"""Programs, libraries, and what they ask about the machine; of `/proc` no other process."""
DEVICES = ("/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
ETC = (
    "X11", "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf",
    "crypto-policies", "debian_version", "fonts", "gai.conf", "gitconfig", "group", "host.conf",
    "hostname", "hosts", "inputrc", "java", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "locale.alias", "locale.conf", "localtime", "lsb-release", "machine-id", "magic", "mime.types",
    "networks", "nsswitch.conf", "openssl", "os-release", "passwd", "pki", "profile", "profile.d",
    "protocols", "resolv.conf", "rpc", "services", "shells", "ssl/cert.pem", "ssl/certs",
    "ssl/openssl.cnf", "terminfo", "timezone", "xdg",
)  # fmt: skip
"""Parts of `/etc` for servers of root, who could read all of it."""
NEVER = frozenset({"/", "/dev", "/proc", "/sys"})
"""Folders that are never granted as a whole."""
TMP = "/tmp"  # noqa: S108 - a name in rules
WIDE = frozenset({
    "/etc", "/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/usr", "/var", "/var/lib",
    f"/var{TMP}", TMP, *NEVER,
})  # fmt: skip
"""Folders that no other path leads to; nor is the home of the operator."""
MANAGERS = frozenset({
    ".asdf", ".bun", ".deno", ".fnm", ".nodenv", ".nvm", ".pyenv", ".rbenv", ".sdkman", ".volta",
})  # fmt: skip
"""Folders of programs that manage versions of interpreters."""
PREFIX = ("bin", "lib", "lib64", "libexec", "include", "share/terminfo", "ssl")
"""Parts of a folder with a `bin` that its programs need."""
PROJECT = ("package.json", "pyproject.toml", "setup.py", "Cargo.toml", "go.mod", "node_modules")
REPOSITORY = ".git"
SHELLS = frozenset({"bash", "dash", "ksh", "sh", "zsh"})
CODE = (".py", ".pyz", ".js", ".mjs", ".cjs", ".ts", ".mts", ".tsx", ".rb", ".sh", ".jar", ".php",
        ".pl", ".lua")  # fmt: skip
"""Ends of names of programs: a server reads them, and does not write them."""
DATABASES = (".db", ".sqlite", ".sqlite3", ".duckdb", ".jsonl", "memory.json")
"""Ends of names of files that are written with other files beside them."""
CODE_PATHS = frozenset({
    "CLASSPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "NODE_PATH", "PATH", "PERL5LIB", "PYTHONPATH",
    "RUBYLIB",
})  # fmt: skip
"""Variables whose files and folders are only read."""
PRIVATE = ("HOME", "TMPDIR", "XDG_*_HOME", "XDG_RUNTIME_DIR", "*_CACHE_DIR", "NPM_CONFIG_CACHE",
           "UV_TOOL_DIR", "UV_TOOL_BIN_DIR", "UV_PYTHON_INSTALL_DIR")  # fmt: skip
"""Variables of the gateway with places of its user; a confined server has places of its own."""
CACHES = {
    "npx": {"npm_config_cache": "npm"}, "npm": {"npm_config_cache": "npm"},
    "pnpx": {"XDG_CACHE_HOME": "pnpm", "XDG_DATA_HOME": "pnpm-data"},
    "pnpm": {"XDG_CACHE_HOME": "pnpm", "XDG_DATA_HOME": "pnpm-data"},
    "uv": {"UV_CACHE_DIR": "uv", "UV_TOOL_DIR": "uv-tools", "UV_PYTHON_INSTALL_DIR": "uv-python"},
    "uvx": {"UV_CACHE_DIR": "uv", "UV_TOOL_DIR": "uv-tools", "UV_PYTHON_INSTALL_DIR": "uv-python"},
    "pipx": {"PIPX_HOME": "pipx", "PIP_CACHE_DIR": "pip"},
    "bunx": {"BUN_INSTALL_CACHE_DIR": "bun"}, "bun": {"BUN_INSTALL_CACHE_DIR": "bun"},
    "deno": {"DENO_DIR": "deno"},
}  # fmt: skip
"""Variables of launchers, and the folder that each has among the caches of its server."""
LINKED = (".gitconfig", ".config/git/config", ".npmrc", ".config/uv/uv.toml",
          ".config/pip/pip.conf")  # fmt: skip
"""Files in the home of the operator that a private home has too, unless they hold a secret."""
SECRET = re.compile(rb"(?i)_auth|password|token|secret|://[^/\s]*@")
CHAIN_MAX = 4
"""Maximum number of programs of which each starts the one before: a script, its interpreter, …"""

_ABSOLUTE = re.compile(r"(?<![\w./~}])/[\w./@+-]+")
_SCRIPT = re.compile(r"[\s(]")
"""Sign of a script in an argument, as `sh -c` and `python -c` have it."""
_SCHEME = re.compile(r"(?:file|sqlite|duckdb):/{2,3}(?=/)")


class Look(Protocol):
    """The files of this machine."""

    def kind(self, path: str) -> str:
        """Return `file`, `folder`, or an empty string if there is nothing."""
        ...

    def real(self, path: str) -> str:
        """Return the path without symbolic links."""
        ...

    def head(self, path: str) -> bytes:
        """Return the beginning of a file; empty if it cannot be read."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the names in a folder; none if it cannot be read."""
        ...


class ServerPlaces(NamedTuple):
    """Folders of one process of a server. `home`: of the operator; `own_home`, `tmp`, `cache`: of
    the server; `root`: whether the gateway runs as root."""

    home: str
    own_home: str
    tmp: str
    cache: str
    root: bool


class FileRights(NamedTuple):
    """Paths that a server may read and execute, and those that it may change."""

    read: tuple[str, ...]
    write: tuple[str, ...]


def lacking(spec: ConfinementSpec, landlock: int, *, filters: bool) -> tuple[str, ...]:
    """Return what this kernel cannot keep the server from, by the profile and the settings.
    `landlock`: its version; `filters`: whether the kernel has seccomp."""
    strict = spec.profile == "strict"
    found: list[str] = []
    if landlock < 1 and not strict:
        found.append("files")
    if landlock < 4 and spec.tcp_ports:
        found.append("TCP ports")
    if landlock < 6 and not strict:
        found.append("signals to other processes")
    if not filters:
        found.append("system calls")
        if spec.network == "none" and not strict:
            found.append("the network")
    return tuple(found)


def environment(
    spec: ConfinementSpec, env: Mapping[str, str], command: tuple[str, ...], places: ServerPlaces
) -> dict[str, str]:
    """Return the environment of a confined server. `env`: of a server that is not confined."""
    found = {
        name: value
        for name, value in env.items()
        if name in spec.own or not any(fnmatchcase(name.upper(), glob) for glob in PRIVATE)
    }
    caches = CACHES.get(basename(command[0]), {})
    ours = {"HOME": places.own_home, "TMPDIR": places.tmp}
    ours["PYTHONUSERBASE"] = join(places.home, ".local")  # packages of `pip install --user`
    ours |= {name: join(places.cache, folder) for name, folder in caches.items()}
    return found | {name: value for name, value in ours.items() if name not in spec.own}


def grants(
    spec: ConfinementSpec,
    command: tuple[str, ...],
    env: Mapping[str, str],
    cwd: str,
    places: ServerPlaces,
    look: Look,
    linked: Iterable[str] = (),
) -> FileRights:
    """Return the paths of a server. `env`: as `environment` returned it; `linked`: files that its
    home has links to."""
    found = _Finder(spec, env, cwd, places, look)
    found.read += [*BASE, *found.etc(), *linked]
    for program in found.on_path(command[0]):
        found.program(program)
    for folder in env.get("PATH", "").split(":"):
        if isabs(folder):
            found.folder_of_programs(normpath(folder))
    found.named(command[1:])
    for name, value in env.items():
        found.variable(name, value)
    found.working_directory()
    found.read += [found.at(path) for path in spec.read]
    found.write += [found.at(path) for path in spec.write]
    found.write += [*DEVICES, places.own_home, places.tmp, places.cache]
    hidden = [*spec.hidden, *NEVER]
    read = [each for path in found.read for each in without(path, hidden, look)]
    write = [path for path in found.write if path not in NEVER]
    return FileRights(tuple(dict.fromkeys(read)), tuple(dict.fromkeys(write)))


def bubblewrap(
    spec: ConfinementSpec, granted: FileRights, cwd: str, filter_fd: int, command: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the command line of bubblewrap. `filter_fd`: descriptor of a filter of system calls,
    negative for none."""
    every = (*granted.write, *granted.read)
    binds = {path: "--ro-bind-try" for path in granted.read if not _within(path, every)}
    binds |= {path: "--bind-try" for path in granted.write if not _within(path, granted.write)}
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]
    words += ["--share-net"] if spec.network == "host" else []
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", TMP]
    for path, how in sorted(binds.items()):
        if not path.startswith(("/dev/", "/proc/")):
            words += [how, path, path]
    words += ["--chdir", cwd]
    words += ["--seccomp", str(filter_fd)] if filter_fd >= 0 else []
    return (*words, "--", *command)


def _within(path: str, others: Iterable[str]) -> bool:
    """Whether the path is below one of these."""
    return any(path.startswith(f"{one}/") for one in others)


def without(path: str, hidden: Iterable[str], look: Look) -> Iterator[str]:
    """Yield this path, or if a hidden path is below it, its members without that path."""
    below = [one for one in hidden if one == path or one.startswith(f"{path.rstrip('/')}/")]
    if not below:
        yield path
    elif path not in below:
        for name in look.names(path):
            yield from without(join(path, name), below, look)


class _Finder:
    def __init__(
        self,
        spec: ConfinementSpec,
        env: Mapping[str, str],
        cwd: str,
        places: ServerPlaces,
        look: Look,
    ) -> None:
        self._spec, self._env, self._cwd, self._look = spec, env, cwd, look
        self._places = places
        self.read: list[str] = []
        self.write: list[str] = []

    def at(self, path: str) -> str:
        """Return the path as an absolute one."""
        if path == "~" or path.startswith("~/"):
            path = f"{self._places.home}{path[1:]}"
        return normpath(join(self._cwd, path))

    def etc(self) -> list[str]:
        return [f"/etc/{name}" for name in ETC] if self._places.root else ["/etc"]

    def wide(self, folder: str) -> bool:
        """Whether the folder is too wide to be granted without being written."""
        return folder in WIDE or folder == self._places.home or self._hides(folder)

    def _hides(self, folder: str) -> bool:
        return any(f"{one}/".startswith(f"{folder}/") for one in self._spec.hidden)

    def on_path(self, program: str) -> list[str]:
        """Return the places of a program that are there."""
        if "/" in program:
            return [self.at(program)]
        folders = self._env.get("PATH", "").split(":")
        places = (join(self._cwd, folder, program) for folder in folders)
        return [one for one in places if self._look.kind(one) == "file"][:1]

    def program(self, path: str, depth: int = 0) -> None:
        """Grant a program, the interpreter that its first line names, and if that is a shell, the
        programs and folders that its text names."""
        for one in dict.fromkeys((path, self._look.real(path))):
            self.code(one)
        head = self._look.head(path)
        if not head.startswith(b"#!") or depth == CHAIN_MAX:
            return
        first, _, text = head[2:].decode(errors="replace").partition("\n")
        names = [word for word in first.split() if not word.startswith("-")][:2]
        for name in names if names and basename(names[0]) == "env" else names[:1]:
            for one in self.on_path(name):
                self.program(one, depth + 1)
        if any(basename(name) in SHELLS for name in names):
            for found in map(normpath, _ABSOLUTE.findall(text)):
                if found not in WIDE and found != self._places.home and self._look.kind(found):
                    self.program(found, depth + 1)

    def code(self, path: str) -> None:
        """Grant what the program or script at this path is part of."""
        self.read.append(path)
        parts = path.split("/")
        for at, part in enumerate(parts):
            if part in MANAGERS or part == "node_modules":
                self.read.append("/".join(parts[: at + 1]))
                return
        folder = dirname(path)
        if basename(folder) in ("bin", "sbin"):
            self.folder_of_programs(folder)
        elif not self.wide(folder) or self._hides(folder):
            self.read.append(self._project(folder))

    def _project(self, folder: str) -> str:
        """Return the repository or the outermost project around a folder, else the folder: parts of
        a project use packages of the whole."""
        found = at = folder
        while at not in WIDE and at != self._places.home:
            if self._look.kind(join(at, REPOSITORY)):
                return at
            if any(self._look.kind(join(at, name)) for name in PROJECT):
                found = at
            at = dirname(at)
        return found

    def folder_of_programs(self, folder: str) -> None:
        """Grant a `bin`, and what belongs to its programs."""
        prefix = dirname(folder)
        if basename(prefix) in MANAGERS:
            self.read.append(prefix)
            return
        self.read.append(folder)
        if basename(folder) not in ("bin", "sbin") or prefix in ("/", "/usr", "/usr/local"):
            return
        about = self._look.head(join(prefix, "pyvenv.cfg")).decode(errors="replace")
        if about or self._look.kind(join(prefix, "conda-meta")):
            self.read.append(prefix)
            for line in about.splitlines():
                key, _, value = line.partition("=")
                if key.strip() == "home":
                    self.program(join(value.strip(), "python3"), CHAIN_MAX)
            self._editable(prefix)
        else:
            self.read += [join(prefix, name) for name in PREFIX]

    def _editable(self, prefix: str) -> None:
        """Grant the source folders of packages that are installed from there."""
        for version in self._look.names(join(prefix, "lib")):
            packages = join(prefix, "lib", version, "site-packages")
            for name in self._look.names(packages):
                if name.endswith(".pth") or name.startswith("__editable__"):
                    text = self._look.head(join(packages, name)).decode(errors="replace")
                    for found in re.findall(r"(?:^|['\"])(/[^'\"\n]+)", text, re.MULTILINE):
                        if self._look.kind(found) and normpath(found) not in WIDE:
                            self.read.append(normpath(found))

    def named(self, words: Iterable[str]) -> None:
        """Grant files and folders that stand in the command line."""
        for word in words:
            for text in dict.fromkeys((word, word.partition("=")[2])):
                self._data(text)
            if _SCRIPT.search(word) and not self._look.kind(self.at(word)):
                for text in _ABSOLUTE.findall(word):
                    self._data(text)

    def variable(self, name: str, value: str) -> None:
        """Grant what a variable names: to read for one of the gateway and for a path of code."""
        own = name in self._spec.own
        if own and name not in CODE_PATHS:
            if "/" in value or value.endswith(DATABASES):
                self._data(value)
        elif name != "PATH" and (own or isabs(value)):
            for each in value.split(":"):
                if self._look.kind(path := self.at(each)) and isabs(each):
                    self.read.append(path)

    def _data(self, text: str) -> None:
        text = _SCHEME.sub("", text)
        if not text or "://" in text or "\n" in text:
            return
        parts = re.split(r"[:,;]", text)
        if len(parts) > 1 and all(isabs(part) for part in parts):
            for part in parts:
                self._data(part)
            return
        path = self.at(text)
        kind = self._look.kind(path)
        if path in NEVER or path.startswith("/proc/"):
            return
        if kind == "file" and path.endswith(CODE):
            self.program(path)
        elif kind:
            self.write.append(path)
        folder = dirname(path)
        with_others = path.endswith(DATABASES) or (not kind and "/" in text)
        there = kind != "folder" and self._look.kind(folder) == "folder"
        if with_others and there and not self.wide(folder):
            self.write.append(folder)

    def working_directory(self) -> None:
        if self._spec.cwd_named:
            self.write.append(self._cwd)
        elif self._cwd not in WIDE and self._cwd != self._places.home:
            self.read.append(self._cwd)
