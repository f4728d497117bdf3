"""What the fixture offers to read: tool definitions, prompts, resources and a template.

Values only; nothing here acts.
"""

import json
from typing import Any

from tests.fakes.everything_steps import PROMPT, Json, text

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQ"
    "DwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="

IMAGE: Json = {"type": "image", "data": PNG, "mimeType": "image/png"}
AUDIO: Json = {"type": "audio", "data": WAV, "mimeType": "audio/wav"}


def embedded(uri: str, words: str, kind: str = "text/plain") -> Json:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": words}}


#: Tools that answer the same to every call.
STILL: dict[str, Json] = {
    "test_simple_text": text("This is a simple text response for testing."),
    "test_image_content": {"content": [IMAGE]},
    "test_audio_content": {"content": [AUDIO]},
    "test_embedded_resource": {
        "content": [embedded("test://embedded-resource", "This is an embedded resource content.")]
    },
    "test_multiple_content_types": {
        "content": [
            *text("Multiple content types test:")["content"],
            IMAGE,
            embedded(
                "test://mixed-content-resource", '{"test":"data","value":123}', "application/json"
            ),
        ]
    },
    "test_error_handling": text("This tool intentionally returns an error for testing", error=True),
    "json_schema_2020_12_tool": text("The schema is what counts."),
    "test_dynamic_tool": text("It comes and goes."),
}

SCHEMA_2020_12: Json = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}

STRING: Json = {"type": "string"}


def tool(name: str, description: str, /, **properties: Json) -> Json:
    schema: Json = {"type": "object"}
    if properties:
        schema["properties"] = properties
    return {"name": name, "description": description, "inputSchema": schema}


ASKING = "Asks its caller: "

#: The first one takes a call without arguments: the suite calls whatever comes first.
TOOLS: list[Json] = [
    tool("test_simple_text", "Answers with a text"),
    tool("test_image_content", "Answers with an image"),
    tool("test_audio_content", "Answers with a sound"),
    tool("test_embedded_resource", "Answers with a resource"),
    tool("test_multiple_content_types", "Answers with a text, an image and a resource"),
    tool("test_error_handling", "Answers with an error"),
    tool("test_tool_with_logging", "Logs three messages"),
    tool("test_logging_tool", "Logs three messages"),
    tool("test_tool_with_progress", "Reports progress three times"),
    tool("test_reconnection", "Closes its stream in the middle of the call"),
    tool(
        "test_x_mcp_header",
        "Has an argument that travels in a header too",
        region={**STRING, "description": "Any region", "x-mcp-header": "Region"},
    ),
    {
        "name": "json_schema_2020_12_tool",
        "description": "Has a schema with everything in it",
        "inputSchema": SCHEMA_2020_12,
    },
    tool("test_trigger_tool_change", "Adds a tool, or removes it again, and says so"),
    tool("test_trigger_prompt_change", "Adds a prompt, or removes it again, and says so"),
    tool("test_update_watched_resource", "Changes the watched resource, and says so"),
    tool("test_sampling", ASKING + "a sampling", prompt=STRING),
    tool("test_elicitation", ASKING + "a form", message=STRING),
    tool("test_elicitation_sep1034_defaults", ASKING + "a form with defaults"),
    tool("test_elicitation_sep1330_enums", ASKING + "a form with choices"),
    tool("test_streaming_elicitation", ASKING + "a form, on the stream of the call"),
    tool("test_missing_capability", ASKING + "a sampling, and cannot do without"),
    tool("test_input_required_result_elicitation", ASKING + "a form"),
    tool("test_input_required_result_sampling", ASKING + "a sampling"),
    tool("test_input_required_result_list_roots", ASKING + "the roots"),
    tool("test_input_required_result_request_state", ASKING + "a form, and remembers"),
    tool("test_input_required_result_multiple_inputs", ASKING + "three things at once"),
    tool("test_input_required_result_multi_round", ASKING + "twice"),
    tool("test_input_required_result_tampered_state", ASKING + "a form, and checks the state"),
    tool("test_input_required_result_capabilities", ASKING + "what it declared"),
    tool("greet", "Greets, never as a task", name=STRING),
    tool(
        "slow_compute",
        "Takes a while: a task if the client knows tasks",
        seconds={"type": "number"},
        label=STRING,
    ),
    tool("failing_job", "A task only; ends with an error of the tool"),
    tool("protocol_error_job", "A task only; ends with an error of the protocol"),
    tool("confirm_delete", ASKING + "a form, as a task if the client knows tasks", filename=STRING),
    tool("multi_input", ASKING + "two forms, as a task if the client knows tasks"),
    tool("test_tool_with_task", ASKING + "a form, then becomes a task"),
]
DYNAMIC_TOOL = tool("test_dynamic_tool", "Comes and goes")


def argument(name: str) -> Json:
    return {"name": name, "description": f"The {name}", "required": True}


PROMPTS: list[Json] = [
    {"name": "test_simple_prompt", "description": "A text"},
    {
        "name": "test_prompt_with_arguments",
        "description": "A text with two arguments in it",
        "arguments": [argument("arg1"), argument("arg2")],
    },
    {
        "name": "test_prompt_with_embedded_resource",
        "description": "A resource and a text",
        "arguments": [argument("resourceUri")],
    },
    {"name": "test_prompt_with_image", "description": "An image and a text"},
    {"name": PROMPT, "description": "Asks its caller for the context"},
]
DYNAMIC_PROMPT: Json = {"name": "test_dynamic_prompt", "description": "Comes and goes"}


def said(*blocks: Json | str) -> Json:
    """A prompt of the user's messages."""
    return {
        "messages": [
            {
                "role": "user",
                "content": {"type": "text", "text": block} if isinstance(block, str) else block,
            }
            for block in blocks
        ]
    }


def prompt(name: str, given: dict[str, Any]) -> Json | None:
    """What a prompt says; None if there is no such prompt."""
    match name:
        case "test_simple_prompt":
            return said("This is a simple prompt for testing.")
        case "test_prompt_with_arguments":
            first, second = given.get("arg1", ""), given.get("arg2", "")
            return said(f"Prompt with arguments: arg1='{first}', arg2='{second}'")
        case "test_prompt_with_embedded_resource":
            uri = given.get("resourceUri", "test://example-resource")
            resource = embedded(uri, "Embedded resource content for testing.")
            return said(resource, "Please process the embedded resource above.")
        case "test_prompt_with_image":
            return said(IMAGE, "Please analyze the image above.")
        case "test_dynamic_prompt":
            return said("It comes and goes.")
        case _:
            return None


WATCHED = "test://watched-resource"
TEMPLATE_PREFIX, TEMPLATE_SUFFIX = "test://template/", "/data"

RESOURCES: list[Json] = [
    {"uri": "test://static-text", "name": "Static text", "mimeType": "text/plain"},
    {"uri": "test://static-binary", "name": "Static binary", "mimeType": "image/png"},
    {"uri": WATCHED, "name": "Watched", "mimeType": "text/plain"},
]
TEMPLATES: list[Json] = [
    {
        "uriTemplate": f"{TEMPLATE_PREFIX}{{id}}{TEMPLATE_SUFFIX}",
        "name": "Template",
        "mimeType": "application/json",
    }
]


def resource(uri: str, watched: int) -> Json | None:
    """The contents of a resource, `watched` being the version of the one that changes."""
    if uri == "test://static-text":
        words = "This is the content of the static text resource."
        return {"uri": uri, "mimeType": "text/plain", "text": words}
    if uri == "test://static-binary":
        return {"uri": uri, "mimeType": "image/png", "blob": PNG}
    if uri == WATCHED:
        return {"uri": uri, "mimeType": "text/plain", "text": f"Watched resource, {watched}"}
    if uri.startswith(TEMPLATE_PREFIX) and uri.endswith(TEMPLATE_SUFFIX):
        number = uri.removeprefix(TEMPLATE_PREFIX).removesuffix(TEMPLATE_SUFFIX)
        found = {"id": number, "templateTest": True, "data": f"Data for ID: {number}"}
        return {"uri": uri, "mimeType": "application/json", "text": json.dumps(found)}
    return None
