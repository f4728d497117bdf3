"""Workspaces in the configuration: the servers of each, and those that it borrows.

Owns: which servers a workspace has, the process of its own for a server at the top of the file that
a namespace names as `default:NAME`, the full name behind such a name, the tree of all that. Never:
full names themselves (`process_names`), reading tables (`parse`), namespaces and endpoints
(`assemble`)."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from metamcp_supervisor.config.config import Config
from metamcp_supervisor.config.document import (
    ConfigDraft,
    ConfigFindings,
    ServerDraft,
    ToolDraft,
    shorten,
)
from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.verbs import ConfigTree, NamespaceTree, WorkspaceTree
from metamcp_worker.ipc.process_names import (
    DEFAULT,
    WORKSPACE_MARK,
    label,
    within,
    workspace_of,
)


def names(drafts: Sequence[ConfigDraft]) -> tuple[str, ...]:
    """Return the names of all workspaces, the default one first."""
    names = (each.name for file in drafts for each in file.workspaces)
    return tuple(dict.fromkeys((DEFAULT, *names)))


def servers_of(workspace: str, servers: Mapping[str, ServerDraft]) -> tuple[str, ...]:
    """Return the servers of a workspace that are not left out."""
    return tuple(
        name
        for name, draft in servers.items()
        if draft.server is not None and workspace_of(name) == workspace
    )


def with_borrowed(
    servers: Mapping[str, ServerDraft], drafts: Sequence[ConfigDraft], findings: ConfigFindings
) -> dict[str, ServerDraft]:
    """Return the servers, and for each workspace with `default:NAME` in a namespace the process of
    its own of that server, unless all share one."""
    all_servers = dict(servers)
    for draft in (each for file in drafts for each in file.namespaces):
        workspace = workspace_of(draft.name)
        for at, name in enumerate(draft.servers or ()):
            lender = servers.get(label(name)) if workspace_of(name) == DEFAULT else None
            if workspace == DEFAULT or lender is None or lender.server is None:
                continue
            if lender.server.sharing == "shared":
                continue
            own = within(workspace, lender.name)
            if own in servers:
                message = f"the workspace {workspace} has a server '{lender.name}' too; rename one"
                findings.error(draft.site.at("servers", at), message)
                continue
            all_servers[own] = replace(
                lender,
                name=own,
                server=replace(lender.server, name=own),
                tools=tuple(replace(tool, server=own) for tool in lender.tools),
            )
    return all_servers


def unknown(name: str, workspace: str, servers: Mapping[str, ServerDraft]) -> str:
    """Return the sentence about a name in a namespace of this workspace that no server has."""
    lent = servers_of(DEFAULT, servers) if workspace != DEFAULT else ()
    short_name = name.removeprefix(within(workspace, ""))
    if WORKSPACE_MARK in short_name and not short_name.startswith(f"{DEFAULT}{WORKSPACE_MARK}"):
        rule = "others cannot be named" if workspace == DEFAULT else "only 'default:' can be named"
        return f"'{shorten(short_name)}' is of another workspace; {rule}"
    if short_name in lent:
        return (
            f"no server of this workspace is named '{short_name}'; did you mean"
            f" 'default:{short_name}'?"
        )
    names = [label(each) for each in servers_of(workspace, servers)]
    names += [f"{DEFAULT}{WORKSPACE_MARK}{each}" for each in lent]
    return f"no server is named '{shorten(short_name)}'; {hint(short_name, names)}"


def full_name(name: str, workspace: str, servers: Mapping[str, ServerDraft]) -> str:
    """Return the full name of the server that `default:NAME` stands for in this workspace: its own
    process, or the one that all share; any other name as it is."""
    if not name.startswith(f"{DEFAULT}{WORKSPACE_MARK}"):
        return name
    own = within(workspace, label(name))
    return own if own in servers else label(name)


def full_names(
    drafts: Iterable[ToolDraft], workspace: str, servers: Mapping[str, ServerDraft]
) -> tuple[ToolDraft, ...]:
    """Return the settings of tools under the full names of their servers."""
    return tuple(
        replace(draft, server=full_name(draft.server, workspace, servers)) for draft in drafts
    )


def of_endpoints(config: Config) -> dict[str, str]:
    """Return the workspace of each endpoint."""
    return {name: endpoint.workspace for name, endpoint in config.endpoints.items()}


def labels(config: Config) -> frozenset[str]:
    """Return the names of the servers, as their workspaces call them."""
    return frozenset(map(label, config.servers))


def tree(config: Config, urls: Mapping[str, str], states: Mapping[str, str]) -> ConfigTree:
    """Return the tree of workspaces. `urls`: of endpoints by name; `states`: of servers."""
    by_workspace: dict[str, list[NamespaceTree]] = {DEFAULT: []}
    for name, namespace in config.namespaces.items():
        endpoints = {
            endpoint_name: urls.get(endpoint_name, "")
            for endpoint_name, it in config.endpoints.items()
            if it.namespace == name
        }
        servers = {server: states.get(server, "disabled") for server in namespace.servers}
        by_workspace.setdefault(workspace_of(name), []).append(
            NamespaceTree(name=label(name), endpoints=endpoints, servers=servers)
        )
    return ConfigTree(
        workspaces=tuple(
            WorkspaceTree(name=name, namespaces=tuple(inside))
            for name, inside in by_workspace.items()
        )
    )
