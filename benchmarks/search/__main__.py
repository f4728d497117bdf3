"""`python -m benchmarks.search [FOLDER [MODEL]]`: how good and how fast the search over tools is.

Judged by our own small set; with the folder of the public sets (see `sets`), by these. With the
folder of a model, also by meaning.
"""

import json
import random
import resource
import statistics
import sys
import time
from pathlib import Path

from benchmarks.search import exposed, quality, sets
from benchmarks.search.sets import Sets
from metamcp_worker.builtin_tools import tool_text
from metamcp_worker.ipc import builtin_definitions
from metamcp_worker.search.index import EXTRA_WEIGHT, Index, ToolDocument

SIZES = (100, 1_000, 10_000)
SEED = 2996
INVENTED_WORDS = 3_000
INVENTED_PER_TOOL = 3
LIMIT = 10
REPEATS = 3
"""Of each query; the fastest counts, so that what else runs here counts less."""


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    try:
        chosen = sets.own() if folder is None else sets.public(folder)
    except OSError as error:
        print(f"{error.filename} cannot be read: {error.strerror}; benchmarks/search/README.md says"
              " where it can be had", file=sys.stderr)  # fmt: skip
        return 2
    index = quality.indexed(chosen)
    print(f"{len(chosen.documents)} tools\n")
    print("| set | queries | R@1 | R@5 | MRR | recall@15 |\n|---|---|---|---|---|---|")
    searches = {"": quality.by(index)}
    if len(sys.argv) > 2:
        from metamcp_worker.embedder.local_model import Model

        embed = Model(Path(sys.argv[2])).embed
        searches[", and meaning"] = quality.meant(index, chosen, embed, EXTRA_WEIGHT)
    for letter, queries in sorted(chosen.queries.items()):
        for what, search in searches.items():
            one = quality.judged(queries, search)
            figures = " | ".join(f"{at:.2f}" for at in (one.first, one.five, one.mrr, one.recall))
            print(f"| {letter}{what} | {len(queries)} | {figures} |")
    print(f"\n{_saved(chosen, index)}\n")
    every = [*chosen.documents, *chosen.counted]
    print(
        f"{len(every)} tools of {len({one.pair[0] for one in every})} servers behind an endpoint:\n"
    )
    print("\n".join([*exposed.table(every), ""]))
    print("| tools | query p50 ms | p95 ms | build CPU ms | memory MB |\n|---|---|---|---|---|")
    for size in SIZES:
        print(_speed(chosen, size))
    return 0


def _saved(chosen: Sets, index: Index) -> str:
    """What five definitions cost instead of all of them."""
    everything = builtin_definitions.tokens_of_all(
        document.definition for document in chosen.documents
    )
    texts = [query.text for queries in chosen.queries.values() for query in queries]
    answers = [len(tool_text.markdown(index.search(text, 5), "full").encode()) for text in texts]
    shown = builtin_definitions.tokens_of_bytes(round(statistics.fmean(answers)))
    saving = builtin_definitions.TokenSavings(everything, shown)
    return (
        f"all definitions: about {everything} tokens; an answer with five full ones: about {shown},"
        f" {saving.percent} % less"
    )


def _speed(chosen: Sets, size: int) -> str:
    servers = _many(chosen, size)
    before = _memory_mb()
    started = time.process_time()
    index = Index()
    for server, documents in servers.items():
        index.put(server, documents)
    build_ms = (time.process_time() - started) * 1e3
    grown = _memory_mb() - before
    taken = sorted(
        min(_timed_ms(index, query.text) for _ in range(REPEATS))
        for queries in chosen.queries.values()
        for query in queries
    )
    p50, p95 = taken[len(taken) // 2], taken[len(taken) * 95 // 100]
    return f"| {size} | {p50:.2f} | {p95:.2f} | {build_ms:.0f} | {grown:.0f} |"


def _timed_ms(index: Index, query: str) -> float:
    started = time.perf_counter()
    index.search(query, LIMIT)
    return (time.perf_counter() - started) * 1e3


def _many(chosen: Sets, size: int) -> dict[str, list[ToolDocument]]:
    """The same tools again and again, each time of other servers and with invented words."""
    dice = random.Random(SEED)
    words = [f"zeta{number}" for number in range(INVENTED_WORDS)]
    servers: dict[str, list[ToolDocument]] = {}
    for number in range(size):
        again, at = divmod(number, len(chosen.documents))
        document = chosen.documents[at]
        server = f"{document.pair[0]}-{again}"
        definition = json.loads(document.definition)
        said = [definition.get("description") or "", *dice.sample(words, INVENTED_PER_TOOL)]
        definition["description"] = " ".join(said)
        definition["name"] = f"{document.pair[1]}_{dice.choice(words)}"
        pair = (server, definition["name"])
        raw = json.dumps(definition).encode()
        servers.setdefault(server, []).append(ToolDocument(pair, "__".join(pair), raw))
    return servers


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


if __name__ == "__main__":
    sys.exit(main())
