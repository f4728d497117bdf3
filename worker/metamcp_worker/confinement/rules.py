"""Files that a confined server gets, its environment, and what the kernel cannot keep it from.

Owns: the choice of paths by profile, command, environment and configuration; the variables of
launchers. Never: looking at files (`launch`, which passes a `FileSystem`), putting rules in force.

Theory. A rule allows a path and everything below it, and nothing takes away from it again. So a
folder that holds a closed path is granted as its members without that path. Paths that the operator
wrote and those of known servers are taken as written. Paths in the command line and in variables,
and those that follow from them, such as the project of a script, are never the home of the
operator, a folder around it, or a closed place.

In the profile `basic` the home is that of the operator, and what is not granted in it is refused at
its real path. A server has a home of its own in `strict`, where nothing else exists, and under a
gateway whose user has none: that of a service, whose home is the state directory.
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
OF_THE_USER = ("HOME", "TMPDIR", "XDG_*_HOME", "XDG_RUNTIME_DIR")
"""Variables of the gateway with places of its user, which open nothing."""
CACHE_VARIABLES = ("XDG_CACHE_HOME", "*_CACHE_DIR", "NPM_CONFIG_CACHE", "DENO_DIR")
"""Variables of the gateway with caches, which a server may change."""
PRIVATE = (*OF_THE_USER, *CACHE_VARIABLES, "UV_TOOL_DIR", "UV_TOOL_BIN_DIR",
           "UV_PYTHON_INSTALL_DIR")  # fmt: skip
"""Variables of the gateway that a server with a home of its own does not get."""
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
HOME_CACHES = (
    ".bun/install/cache", ".cache", ".local/share/pnpm/store", ".npm", ".yarn/berry/cache",
)  # fmt: skip
"""Folders of the home that a server may change; what a launcher downloads is there."""
LAUNCHER_CACHES = {
    "npx": ".npm", "npm": ".npm", "bunx": ".bun/install/cache", "bun": ".bun/install/cache",
    "pnpx": ".local/share/pnpm/store", "pnpm": ".local/share/pnpm/store",
}  # fmt: skip
"""The one of these folders without which a launcher cannot start; the others use `.cache`."""
HOME_PROGRAMS = (
    ".config/fontconfig", ".config/git/attributes", ".config/git/ignore", ".fonts", ".fonts.conf",
    ".gitattributes", ".gitignore", ".gitignore_global", ".local/bin", ".local/lib",
    ".local/share/ca-certificates", ".local/share/fonts", ".local/share/mise",
    ".local/share/pipx", ".local/share/uv",
)  # fmt: skip
"""Files and folders of the home that programs need to work at all."""
SETTINGS = {
    ".gitconfig": "GIT_CONFIG_GLOBAL", ".config/git/config": "GIT_CONFIG_GLOBAL",
    ".npmrc": "NPM_CONFIG_USERCONFIG", ".config/uv/uv.toml": "UV_CONFIG_FILE",
    ".config/pip/pip.conf": "PIP_CONFIG_FILE", ".pip/pip.conf": "PIP_CONFIG_FILE",
    ".yarnrc.yml": "", ".bunfig.toml": "", ".condarc": "CONDARC",
}  # fmt: skip
"""Settings in the home that are readable unless they hold a secret, and the variable with which a
program finds them from another home."""
SECRET = re.compile(rb"(?i)_auth|password|token|secret|https?://[^/\s]*@|://[^/\s:@]*:[^/\s]*@")
SETTINGS_BYTES_MAX = 16 * 1024
"""Bytes of a file of settings; a larger one stays closed, because it is not read to its end."""
SECRETS = (
    ".aws", ".azure", ".boto", ".cargo/credentials", ".cargo/credentials.toml", ".cloudflared",
    ".composer/auth.json", ".config/containers/auth.json", ".config/doctl", ".config/gcloud",
    ".config/gh", ".config/git/credentials", ".config/glab-cli", ".config/helm", ".config/hub",
    ".config/op", ".config/pulumi", ".config/rclone", ".config/sops", ".config/stripe",
    ".config/.wrangler", ".databrickscfg", ".docker", ".fly", ".gem/credentials",
    ".git-credentials", ".gnupg", ".gradle/gradle.properties", ".heroku", ".huggingface",
    ".kaggle", ".kube", ".m2/settings.xml", ".my.cnf", ".mylogin.cnf",
    ".netrc", ".npmrc", ".oci", ".pgpass", ".pip/pip.conf", ".config/pip/pip.conf", ".pypirc",
    ".pulumi", ".s3cfg", ".snowflake", ".snowsql", ".ssh", ".terraform.d", ".terraformrc",
    ".vault-token", ".Xauthority", ".ICEauthority",
    ".config/1Password", ".config/Bitwarden", ".config/Bitwarden CLI", ".config/keepassxc",
    ".kwallet", ".local/share/gopass", ".local/share/keyrings", ".local/share/kwalletd",
    ".local/share/password-store", ".password-store", ".pki",
    ".config/BraveSoftware", ".config/chromium", ".config/google-chrome",
    ".config/google-chrome-beta", ".config/google-chrome-unstable", ".config/microsoft-edge",
    ".config/opera", ".config/vivaldi", ".librewolf", ".mozilla", ".thunderbird", ".var/app",
    ".zen", "snap",
    ".ash_history", ".bash_history", ".dbshell", ".history", ".irb_history", ".ksh_history",
    ".lesshst", ".local/share/fish/fish_history", ".local/share/nushell", ".local/share/atuin",
    ".mongodb", ".mongosh", ".mysql_history", ".node_repl_history", ".psql_history",
    ".python_history", ".rediscli_history", ".sh_history", ".sqlite_history", ".viminfo",
    ".zhistory", ".zsh_history", ".zsh_sessions",
    ".claude", ".claude.json", ".cline", ".codeium", ".codex", ".config/Claude", ".config/Code",
    ".config/Cursor", ".config/VSCodium", ".config/Windsurf", ".config/claude", ".config/crush",
    ".config/github-copilot", ".config/goose", ".config/opencode", ".config/zed", ".continue",
    ".copilot", ".cursor/mcp.json", ".gemini", ".kiro", ".lmstudio", ".local/share/opencode",
    ".gmail-mcp", ".mcp-auth", ".mcp.json", ".qwen", ".roo", ".vscode/mcp.json",
    ".config/metamcp", ".config/mcp", ".local/share/metamcp", ".local/state/metamcp", ".meta-mcp",
)  # fmt: skip
"""Places with secrets in a home: of programs, keyrings, browsers, histories, MCP clients and this
gateway. `read` and `write` of a server and the table of known servers open them, and no other value
does; files of `SETTINGS` are readable if they hold no secret."""
CLIENT_FILES = (".mcp.json", ".cursor/mcp.json", ".vscode/mcp.json", ".codex/config.toml",
                ".gemini/settings.json", ".roo/mcp.json")  # fmt: skip
"""Files of MCP clients in a project; tokens of other servers may be in them."""
RUN_BY_OTHERS = frozenset({
    ".claude", ".codex", ".cursor", ".devcontainer", ".envrc", ".gemini", ".git", ".githooks",
    ".github", ".gitlab-ci.yml", ".hg", ".husky", ".idea", ".jj", ".kiro", ".mcp.json", ".roo",
    ".svn", ".vscode", ".windsurf", ".zed",
})  # fmt: skip
"""Members of a project that its other programs run or are set up by: hooks, tasks, commands. No
server may change them unless the operator opened them."""
NO_SANDBOX = "--no-sandbox"
"""Argument of Chromium without a sandbox of its own."""
CHAIN_MAX = 4
"""Maximum number of programs in a row, each started by the next: a script, its interpreter, …"""

_ABSOLUTE = re.compile(r"(?<![\w./~}])/[\w./@+-]+")
_SCRIPT = re.compile(r"[\s(]")
"""Sign of a script in an argument, as `sh -c` and `python -c` have it."""
_SCHEME = re.compile(r"(?:file|sqlite|duckdb):/{2,3}(?=/)")


class FileSystem(Protocol):
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
    the server, the first and the last for a server with a home of its own only; `root`: whether the
    gateway runs as root."""

    home: str
    own_home: str
    tmp: str
    cache: str
    root: bool


class FileRights(NamedTuple):
    """Paths that a server may read and execute, those that it may change, and folders where it may
    only read the names. `refused`: a sentence for each path that stays closed though the command
    line or a variable of the server names it."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    names: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def find_unprotected(
    spec: ConfinementSpec, landlock: int, *, filters: bool, asks: bool = True, browsers: bool = True
) -> tuple[str, ...]:
    """Return what this kernel cannot keep the server from, by the profile and the settings.
    `landlock`: its version; `filters`: whether the kernel has seccomp; `asks`: whether a filter can
    ask a process; `browsers`: whether a confined browser can start."""
    if spec.browser and not browsers:
        return ("anything, as its browser would not start",)
    strict = spec.profile == "strict"
    unprotected = ["files"] if landlock < 1 and not strict else []
    if landlock < 4 and spec.tcp_ports:
        unprotected.append("TCP ports")
    if landlock < 6 and not strict:
        unprotected.append("signals to other processes")
    if not filters:
        unprotected.append("system calls")
        if spec.network == "none" and not strict:
            unprotected.append("the network")
    if not asks and not strict:
        unprotected += ["unix sockets of others", "open endpoints of the gateway"]
    return tuple(unprotected)


def has_own_sandbox(
    spec: ConfinementSpec, command: Iterable[str], env: Mapping[str, str], *, root: bool
) -> bool:
    """Whether a server starts a browser that makes a sandbox of its own: none does as root, and a
    command can switch it off."""
    texts = (*command, *env.values())
    return spec.browser and not root and not any(NO_SANDBOX in text for text in texts)


def environment(
    spec: ConfinementSpec,
    env: Mapping[str, str],
    command: tuple[str, ...],
    places: ServerPlaces,
    look: FileSystem,
) -> dict[str, str]:
    """Return the environment of a confined server. `env`: of a server that is not confined."""
    ours = {"TMPDIR": places.tmp}
    if places.own_home:
        env = {
            name: value
            for name, value in env.items()
            if name in spec.own or not _fits(name, PRIVATE)
        }
        ours["HOME"] = places.own_home
        ours["PYTHONUSERBASE"] = join(places.home, ".local")  # packages of `pip install --user`
        caches = CACHES.get(basename(command[0]), {})
        ours |= {name: join(places.cache, folder) for name, folder in caches.items()}
        for path in reversed(settings(places.home, look)):
            if variable := SETTINGS[path[len(places.home) + 1 :]]:
                ours[variable] = path
    elif basename(command[0]) in ("uv", "uvx"):
        # Tools and interpreters in the folder of uv are programs that others run.
        ours["UV_TOOL_DIR"] = join(places.home, ".cache", "uv-tools")
        if not look.kind(join(places.home, ".local/share/uv/python")):
            ours["UV_PYTHON_INSTALL_DIR"] = join(places.home, ".cache", "uv-python")
    return {**env, **{name: value for name, value in ours.items() if name not in spec.own}}


def has_own_home(spec: ConfinementSpec, home: str, *, usable: bool) -> bool:
    """Whether a server has a home of its own. `usable`: whether the operator may change theirs."""
    of_gateway = any(f"{home}/".startswith(f"{path}/") for path in spec.hidden)
    return spec.profile == "strict" or of_gateway or not usable


def settings(home: str, look: FileSystem) -> list[str]:
    """Return the files of settings in the home of the operator that hold no secret."""
    texts = {path: look.head(path) for path in (join(home, name) for name in SETTINGS)}
    return [
        path
        for path, text in texts.items()
        if text and len(text) < SETTINGS_BYTES_MAX and not SECRET.search(text)
    ]


def launcher_caches(command: tuple[str, ...], places: ServerPlaces) -> list[str]:
    """Return the folders of the home that the launcher of this command cannot start without."""
    names = () if places.own_home else (".cache", LAUNCHER_CACHES.get(basename(command[0]), ""))
    return [join(places.home, name) for name in names if name]


def grants(
    spec: ConfinementSpec,
    command: tuple[str, ...],
    env: Mapping[str, str],
    cwd: str,
    places: ServerPlaces,
    look: FileSystem,
) -> FileRights:
    """Return the paths of a server. `env`: as `environment` returned it."""
    closed = ClosedPlaces(spec, cwd, places.home, look)
    finder = _Finder(spec, env, cwd, places, look, closed)
    finder.read += [*BASE, *([f"/etc/{name}" for name in ETC] if places.root else ["/etc"])]
    for program in finder.on_path(command[0]):
        finder.program(program)
    for folder in env.get("PATH", "").split(":"):
        if isabs(folder):
            finder.folder_of_programs(normpath(folder))
    finder.grant_arguments(command[1:])
    for name, value in env.items():
        finder.variable(name, value)
    finder.working_directory()
    if not places.own_home:
        finder.home()
    read = [each for path in finder.read for each in closed.iter_open_paths(path)]
    write = [each for path in finder.write for each in closed.iter_open_paths(path)]
    read += [*settings(places.home, look), *finder.iter_allowed("read", spec.read)]
    write += [*finder.iter_allowed("write", spec.write), *DEVICES]
    write += filter(None, (places.own_home, places.tmp, places.cache))
    write = [path for path in write if path not in NEVER]
    lists = map(tuple[str, ...], map(dict.fromkeys, (read, write, finder.names, finder.refused)))
    return FileRights(*lists)


def within(path: str, others: Iterable[str]) -> bool:
    """Whether the path is below one of these."""
    return any(path.startswith(f"{other}/") for other in others)


def _fits(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name.upper(), glob) for glob in globs)


def _ancestors(path: str) -> Iterator[str]:
    """Yield the folders around a path, the nearest first."""
    while path not in ("/", ""):
        path = dirname(path)
        yield path


class ClosedPlaces:
    """Places that are opened by what the operator wrote and by nothing else: the home as a whole,
    folders around it, `SECRETS`, files of MCP clients, and those of this gateway."""

    def __init__(self, spec: ConfinementSpec, cwd: str, home: str, look: FileSystem) -> None:
        self._look = look
        homes = dict.fromkeys((home, look.real(home)))
        self._wide = {folder for each in homes for folder in (each, *_ancestors(each))}
        places = [join(each, name) for each in homes for name in SECRETS]
        places += [path for name in CLIENT_FILES if look.kind(path := join(cwd, name))]
        places += [each for path in spec.hidden for each in (path, look.real(path))]
        self._places = set(places)
        self._around: set[str] = set()
        for each in places:
            for folder in _ancestors(each):
                if folder in self._around:
                    break
                self._around.add(folder)

    def reason(self, path: str) -> str:
        """Return why a path stays closed, as the end of a sentence; empty if it does not."""
        return self.reason_of_real(self._look.real(path))

    def reason_of_real(self, real: str) -> str:
        """Return the same for a path without links."""
        if real in NEVER:
            return "which is the whole machine or shows it other processes and devices"
        if real in self._wide:
            return "which is your home or a folder around it"
        if not self._places.isdisjoint((real, *_ancestors(real))):
            return "which is a place with secrets or of the gateway"
        return ""

    def iter_open_paths(self, path: str) -> Iterator[str]:
        """Yield a path, or if something closed is below it, its members without that. A member
        that is a link is left out: the place that it leads to has its own rule, or none."""
        real = self._look.real(path)
        if path not in BASE and self.reason_of_real(real):
            return
        if real not in self._around:
            yield path
            return
        for name in self._look.names(path):
            if self._look.real(join(path, name)) == join(real, name):
                yield from self.iter_open_paths(join(path, name))


class _Finder:
    def __init__(
        self,
        spec: ConfinementSpec,
        env: Mapping[str, str],
        cwd: str,
        places: ServerPlaces,
        look: FileSystem,
        closed: ClosedPlaces,
    ) -> None:
        self._spec, self._env, self._cwd, self._look = spec, env, cwd, look
        self._places, self._closed = places, closed
        self.read: list[str] = []
        self.write: list[str] = []
        self.names: list[str] = []
        self.refused: list[str] = []

    def at(self, path: str) -> str:
        """Return the path as an absolute one."""
        if path == "~" or path.startswith("~/"):
            path = f"{self._places.home}{path[1:]}"
        return normpath(join(self._cwd, path))

    def iter_allowed(self, key: str, paths: Iterable[str]) -> Iterator[str]:
        """Yield paths that the operator wrote, but no link that somebody made of one of them to a
        closed place that nobody wrote."""
        for path in map(self.at, paths):
            if (reason := self._closed.reason(path)) and not self._closed.reason_of_real(path):
                real = self._look.real(path)
                self.refused.append(
                    f"{key} names {path}, a link to {real}, {reason}: write {real} if it needs it"
                )
            else:
                yield path

    def wide(self, folder: str) -> bool:
        """Whether the folder is too wide to be granted without being written."""
        return folder in WIDE or bool(self._closed.reason(folder)) or self._hides(folder)

    def _hides(self, folder: str) -> bool:
        return any(f"{hidden}/".startswith(f"{folder}/") for hidden in self._spec.hidden)

    def on_path(self, program: str) -> list[str]:
        """Return the places of a program that are there."""
        if "/" in program:
            return [self.at(program)]
        folders = self._env.get("PATH", "").split(":")
        places = (join(self._cwd, folder, program) for folder in folders)
        return [path for path in places if self._look.kind(path) == "file"][:1]

    def program(self, path: str, depth: int = 0) -> None:
        """Grant a program, the interpreter that its first line names, and if that is a shell, the
        programs and folders that its text names."""
        for code_path in dict.fromkeys((path, self._look.real(path))):
            self.code(code_path)
        head = self._look.head(path)
        if not head.startswith(b"#!") or depth == CHAIN_MAX:
            return
        first, _, text = head[2:].decode(errors="replace").partition("\n")
        names = [word for word in first.split() if not word.startswith("-")][:2]
        for name in names if names and basename(names[0]) == "env" else names[:1]:
            for interpreter in self.on_path(name):
                self.program(interpreter, depth + 1)
        if any(basename(name) in SHELLS for name in names):
            for target in map(normpath, _ABSOLUTE.findall(text)):
                if target not in WIDE and target != self._places.home and self._look.kind(target):
                    self.program(target, depth + 1)

    def code(self, path: str) -> None:
        """Grant what the program or script at this path is part of."""
        self.read.append(path)
        parts = path.split("/")
        for at, component in enumerate(parts):
            if component in MANAGERS or component == "node_modules":
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
        project = at = folder
        while at not in WIDE and not self._closed.reason(at):
            if self._look.kind(join(at, REPOSITORY)):
                return at
            if any(self._look.kind(join(at, name)) for name in PROJECT):
                project = at
            at = dirname(at)
        return project

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
                    for source_folder in re.findall(r"(?:^|['\"])(/[^'\"\n]+)", text, re.MULTILINE):
                        if self._look.kind(source_folder) and normpath(source_folder) not in WIDE:
                            self.read.append(normpath(source_folder))

    def grant_arguments(self, words: Iterable[str]) -> None:
        """Grant files and folders that stand in the command line."""
        origin = "its command line"
        for word in words:
            for text in dict.fromkeys((word, word.partition("=")[2])):
                self._data(text, origin)
            if _SCRIPT.search(word) and not self._look.kind(self.at(word)):
                for text in _ABSOLUTE.findall(word):
                    self._data(text, origin)

    def variable(self, name: str, value: str) -> None:
        """Grant what a variable names: to read for one of the gateway and for a path of code, and
        to change for one with a cache."""
        own = name in self._spec.own
        if own and name not in CODE_PATHS:
            if "/" in value or value.endswith(DATABASES):
                self._data(value, f"its variable {name}")
        elif not own and _fits(name, CACHE_VARIABLES) and isabs(value):
            self.write.append(normpath(value))
        elif name != "PATH" and (own or isabs(value)) and not _fits(name, OF_THE_USER):
            for each in value.split(":"):
                if self._look.kind(path := self.at(each)) and isabs(each):
                    self.read.append(path)

    def _data(self, text: str, origin: str) -> None:
        """Grant what a text names, if that is a path. `origin`: where it stands."""
        text = _SCHEME.sub("", text)
        if not text or "://" in text or "\n" in text:
            return
        parts = re.split(r"[:,;]", text)
        if len(parts) > 1 and all(isabs(piece) for piece in parts):
            for piece in parts:
                self._data(piece, origin)
            return
        path = self.at(text)
        kind = self._look.kind(path)
        if (kind or "/" in text) and (reason := self._closed.reason(path)):
            self.refused.append(
                f"{origin} names {path}, {reason}, and that alone does not open it: write"
                f' read = ["{path}"] or write = ["{path}"] if it needs it'
            )
            return
        if kind == "file" and path.endswith(CODE):
            self.program(path)
        elif kind:
            (self.read if within(path, BASE) else self.write).append(path)
        folder = dirname(path)
        with_others = path.endswith(DATABASES) or (not kind and "/" in text)
        there = kind != "folder" and self._look.kind(folder) == "folder"
        if with_others and there and not self.wide(folder):
            self.write.append(folder)
        elif with_others and there and folder != "/":
            self.refused.append(
                f"{origin} names {path}, and {folder} stays closed to new files, because it holds"
                f' more: write write = ["{folder}"], or name a file in a folder of its own'
            )

    def working_directory(self) -> None:
        """Grant the folder of the configuration or the one that the configuration names. In the
        profile `strict` a new file beside members that are granted one by one would be lost, so
        the folder is granted as a whole or only read."""
        cwd = self._cwd
        if (cwd in WIDE and not self._spec.cwd_named) or self._closed.reason(cwd):
            return
        self.read.append(cwd)
        if self._spec.profile == "strict":
            self.write += [cwd] if self._spec.cwd_named else []
            return
        self.names.append(cwd)
        members = self._look.names(cwd)
        if RUN_BY_OTHERS.isdisjoint(members):
            self.write.append(cwd)
            return
        real = self._look.real(cwd)
        for name in members:
            path = join(cwd, name)
            if name not in RUN_BY_OTHERS and self._look.real(path) == join(real, name):
                self.write.append(path)

    def home(self) -> None:
        """Grant what programs need of the home, and the caches in it."""
        self.read += [join(self._places.home, name) for name in HOME_PROGRAMS]
        self.write += [join(self._places.home, name) for name in HOME_CACHES]
