"""A model on this machine: a tiny one that the test makes. It needs `metamcp[semantic]`."""

import asyncio
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from metamcp_worker.embedder.embeddings_api import NoVectors
from metamcp_worker.embedder.run import LocalVectorSource

np: Any = pytest.importorskip("numpy")
tokenizers: Any = pytest.importorskip("tokenizers")
save_file: Any = pytest.importorskip("safetensors.numpy").save_file
local: Any = pytest.importorskip("metamcp_worker.embedder.local_model")

WORDS = ["[UNK]", "[CLS]", "[SEP]", "a", "dog", "cat", "barks"]
SIZE, INNER, LAYERS = 8, 16, 2
CONFIG = {
    "model_type": "bert", "hidden_size": SIZE, "num_attention_heads": 2,
    "num_hidden_layers": LAYERS, "max_position_embeddings": 6,
}  # fmt: skip


def folder(path: Path, **config: object) -> Path:
    """With a model whose numbers are always the same."""
    path.mkdir(exist_ok=True)
    dice = random.Random(1)

    def made(*shape: int) -> Any:
        count = math.prod(shape)
        return np.array([dice.gauss(0, 0.5) for _ in range(count)], "float32").reshape(shape)

    weights = {
        "embeddings.word_embeddings.weight": made(len(WORDS), SIZE),
        "embeddings.position_embeddings.weight": made(6, SIZE),
        "embeddings.token_type_embeddings.weight": made(2, SIZE),
    }
    norms, dense = ["embeddings.LayerNorm"], dict[str, tuple[int, int]]()
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}."
        norms += [at + "attention.output.LayerNorm", at + "output.LayerNorm"]
        for name in ("attention.self.query", "attention.self.key", "attention.self.value",
                     "attention.output.dense"):  # fmt: skip
            dense[at + name] = SIZE, SIZE
        dense |= {at + "intermediate.dense": (INNER, SIZE), at + "output.dense": (SIZE, INNER)}
    for name in norms:
        weights |= {f"{name}.weight": made(SIZE), f"{name}.bias": made(SIZE)}
    for name, shape in dense.items():
        weights |= {f"{name}.weight": made(*shape), f"{name}.bias": made(shape[0])}
    save_file(weights, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG | config))
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    split = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    split.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    split.save(str(path / "tokenizer.json"))
    return path


def test_a_text_has_one_vector_of_length_one_whatever_is_beside_it(tmp_path: Path) -> None:
    model = local.Model(folder(tmp_path / "m"))
    dog, cat = model.embed(["a dog barks", "a cat"])
    assert model.embed(["a cat"]) == [cat]
    assert dog != cat
    for one in (dog, cat):
        assert len(one) == SIZE
        assert math.hypot(*one) == pytest.approx(1, abs=1e-5)


def test_what_is_longer_than_the_model_reads_does_not_count(tmp_path: Path) -> None:
    model = local.Model(folder(tmp_path / "m"))
    six = "a dog a cat a dog"
    assert model.embed([six + " barks barks"]) == model.embed([six])


def test_the_error_function_is_that_of_the_books() -> None:
    values = [number / 10 for number in range(-50, 51)]
    found = local.gelu(np.array(values))
    wanted = [value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in values]
    assert np.allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "gpt2"}, "not a BERT encoder"),
        ({"hidden_act": "relu"}, "not a BERT encoder"),
        ({"hidden_size": "many"}, "no model can be read"),
    ],
)
def test_another_kind_of_model_is_refused(
    tmp_path: Path, config: dict[str, object], why: str
) -> None:
    with pytest.raises(local.ModelUnfit, match=why):
        local.Model(folder(tmp_path / "m", **config))
    with pytest.raises(local.ModelUnfit, match="no model can be read"):
        local.Model(tmp_path / "nothing")


def test_a_model_that_lacks_layers_is_said_when_it_is_asked(tmp_path: Path) -> None:
    model = local.Model(folder(tmp_path / "m", num_hidden_layers=LAYERS + 1))
    with pytest.raises(local.ModelUnfit, match="the model lacks what a BERT encoder has"):
        model.embed(["a dog"])


def test_as_a_source_it_answers_from_its_thread(tmp_path: Path) -> None:
    async def main(path: Path) -> list[list[float]]:
        machine = LocalVectorSource(path)
        try:
            return await machine.embed(["a dog", "a cat"])
        finally:
            await machine.close()

    path = folder(tmp_path / "m")
    assert asyncio.run(main(path)) == local.Model(path).embed(["a dog", "a cat"])
    with pytest.raises(NoVectors, match="no model can be read"):
        asyncio.run(main(tmp_path / "nothing"))
