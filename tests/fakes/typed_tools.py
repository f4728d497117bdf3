"""An MCP server inside its worker, whose tools take and give all kinds of values."""

from typing import Annotated, Literal

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel, Field

server = MCPServer("typed")


class Author(BaseModel):
    """Person who wrote something. `born`: year."""

    name: Annotated[str, Field(min_length=1, max_length=50)]
    born: Annotated[int, Field(ge=-3000, le=2100)] | None = None


class Book(BaseModel):
    """What somebody wrote. `rating`: from 0 to 1."""

    title: str
    authors: Annotated[list[Author], Field(max_length=5)]
    kind: Literal["novel", "poem", "manual"] = "novel"
    rating: Annotated[float, Field(ge=0, le=1)] | None = None
    shelves: dict[str, bool] = {}


@server.tool()
def keep(book: Book, copies: Annotated[int, Field(ge=1, le=1000)] = 1) -> list[Book]:
    """Give back the first copies of a book."""
    return [book] * min(copies, 3)


@server.tool()
def count(words: list[str], upper: bool = False) -> dict[str, int]:
    """Count the letters of each word."""
    return {word.upper() if upper else word: len(word) for word in words}


@server.tool()
def nothing() -> None:
    """Do nothing."""
