"""What the scripted server tells on its own: log messages, changed lists, updated resources."""

import json

from tests.fakes.stdio_wire import META, Json, Refused, Wire, content

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


class Watch(Wire):
    """`listeners`: the filters of modern subscriptions by their ids; `watched`: how often a legacy
    client subscribed to a URI and did not unsubscribe; `told`: notifications of the client."""

    changes = 0
    level = 0
    listened = 0

    def begin(self) -> None:
        self.listeners: dict[object, Json] = {}
        self.watched: dict[str, int] = {}
        self.told: list[Json] = []
        self.relayed: list[str] = []

    def noted(self, method: str, params: Json) -> None:
        """A notification of the client."""
        self.told.append({"method": method, "params": params})
        if method == "notifications/cancelled":
            self.listeners.pop(params.get("requestId"), None)

    def listen(self, number: object, params: Json) -> None:
        self.listened += 1
        if self.options.refuse_listen:
            raise Refused(-32603, "nobody listens here")
        wanted: Json = params.get("notifications", {})
        declared: Json = params.get("_meta", {}).get(META + "clientCapabilities", {})
        if "taskIds" in wanted and META + "tasks" not in declared.get("extensions", {}):
            raise Refused(-32021, "the client has no tasks")
        honoured = dict(wanted)
        if "resourceSubscriptions" in wanted:
            honoured["resourceSubscriptions"] = [
                uri for uri in wanted["resourceSubscriptions"] if uri.startswith("fake://")
            ]
        self.listeners[number] = honoured
        self.notify("notifications/subscriptions/acknowledged", notifications=honoured, of=number)

    def subscribe(self, method: str, params: Json) -> Json:
        uri: str = params["uri"]
        self.relayed.append(f"{method} {uri}")
        if not uri.startswith("fake://"):
            raise Refused(-32002, f"no resource {uri}", {"uri": uri})
        count = self.watched.get(uri, 0) + (1 if method == "resources/subscribe" else -1)
        self.watched[uri] = count
        return {}

    def set_level(self, params: Json) -> Json:
        if params.get("level") not in LEVELS:
            raise Refused(-32602, "no such level")
        self.level = LEVELS.index(params["level"])
        self.relayed.append(f"logging/setLevel {params['level']}")
        return {}

    def tool_change(self, _: object) -> Json:
        """One more tool, announced to whoever has to be told."""
        self.changes += 1
        for listener in list(self.listeners) or [None]:
            self.notify("notifications/tools/list_changed", of=listener)
        return content(f"new{self.changes - 1}")

    def tool_touch(self, _: object, uri: str = "fake://one") -> Json:
        """Say that a resource was updated to all who watch it; how often it was said."""
        listeners: list[object] = [
            of for of, wanted in self.listeners.items()
            if uri in wanted.get("resourceSubscriptions", ())
        ]  # fmt: skip
        listeners += [None] * (self.watched.get(uri, 0) > 0)
        for of in listeners:
            params: Json = {"uri": uri, "x-kept": 1.0}
            self.notify("notifications/resources/updated", of=of, **params)
        return content(str(len(listeners)))

    def tool_end_listens(self, _: object) -> Json:
        """End all subscriptions the way a server does that shuts down."""
        ended = list(self.listeners)
        self.listeners.clear()
        for number in ended:
            meta = {META + "subscriptionId": number}
            self.reply(number, result={"resultType": "complete", "_meta": meta})
        return content(str(len(ended)))

    def tool_log(self, _: object, text: str = "", level: str = "info") -> Json:
        """One message, whatever was asked for."""
        self.notify("notifications/message", level=level, data=text, logger="scripted")
        return content(text)

    def tool_log_levels(self, _: object) -> Json:
        """A message at every level that the client wants; how many."""
        asked = self.params.get("_meta", {}).get(META + "logLevel")
        lowest = self.level
        if self.modern:
            lowest = LEVELS.index(asked) if asked in LEVELS else len(LEVELS)
        for level in LEVELS[lowest:]:
            self.notify("notifications/message", level=level, data=f"at {level}")
        return content(str(len(LEVELS) - lowest))

    def tool_notify(
        self,
        _: object,
        method: str = "notifications/example.com/custom",
        params: Json | None = None,
    ) -> Json:
        """Any notification."""
        self.notify(method, **(params or {"x-kept": 1.0}))
        return content("told")

    def tool_state(self, _: object) -> Json:
        """JSON of what this server knows: listeners, subscriptions, notifications of the client,
        `resources/(un)subscribe` and `logging/setLevel` in their order, the level."""
        known = {
            "listeners": list(self.listeners.values()),
            "listened": self.listened,
            "watched": sorted(uri for uri, count in self.watched.items() if count > 0),
            "told": self.told,
            "relayed": self.relayed,
            "level": LEVELS[self.level],
        }
        return content(json.dumps(known))
