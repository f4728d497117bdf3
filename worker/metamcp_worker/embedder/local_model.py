"""Small model of meanings on this machine: the folder of a BERT encoder, run with numpy.

Owns: reading the folder (`config.json`, `tokenizer.json`, `model.safetensors`), the arithmetic of
the encoder, the mean of its last layer. Never: where vectors are kept, who asks.

Models of the family of all-MiniLM-L6-v2 need absolute positions, GELU, and layer norms behind each
step. Another architecture is refused, because its numbers would be meaningless.
"""

import math
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import MetaMCPError

TOKENS_MAX = 256
"""Maximum tokens of one text, the rest is cut off; these models were trained with this number."""
FILES = ("config.json", "tokenizer.json", "model.safetensors")

#: Coefficients of the error function: Abramowitz and Stegun, 7.1.26; the error is below 2e-7.
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_ERF_P = 0.3275911

Array = Any
"""Array of numpy, whose own types show neither shape nor size."""

# Few installations have these, so types are checked without them.
np: Any = import_module("numpy")


class ModelUnfit(MetaMCPError):
    """Folder without a model that can be run. The text is a sentence without a full stop."""


class _Config(Struct, frozen=True):
    model_type: str
    hidden_size: int
    num_attention_heads: int
    num_hidden_layers: int
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    max_position_embeddings: int = 512


class Model:
    """Model, loaded from a folder. Raises ModelUnfit."""

    def __init__(self, folder: Path) -> None:
        try:
            self._config = codec.decode_as(_Config, (folder / FILES[0]).read_bytes())
            tokenizers, safetensors = (
                import_module("tokenizers"),
                import_module("safetensors.numpy"),
            )
            self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / FILES[1]))
            self._weights: dict[str, Array] = safetensors.load_file(folder / FILES[2])
        except Exception as error:  # noqa: BLE001 - whatever three libraries make of foreign files
            raise ModelUnfit(f"no model can be read in {folder}: {error}") from None
        config = self._config
        if config.model_type != "bert" or config.hidden_act != "gelu":
            raise ModelUnfit(f"the model in {folder} is not a BERT encoder with GELU")
        tokens = min(TOKENS_MAX, config.max_position_embeddings)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(tokens)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector of length 1 for each text. Raises ModelUnfit."""
        try:
            return [self._embed_text(text) for text in texts]
        except (KeyError, ValueError, IndexError) as error:
            raise ModelUnfit(f"the model lacks what a BERT encoder has: {error}") from None

    def _embed_text(self, text: str) -> list[float]:
        ids = np.array(self._tokenizer.encode(text).ids)
        weights = self._weights
        at = "embeddings."
        hidden = (
            weights[at + "word_embeddings.weight"][ids]
            + weights[at + "position_embeddings.weight"][: len(ids)]
            + weights[at + "token_type_embeddings.weight"][0]
        )
        hidden = self._even(hidden, at + "LayerNorm")
        for layer in range(self._config.num_hidden_layers):
            hidden = self._layer(hidden, f"encoder.layer.{layer}.")
        mean = hidden.mean(axis=0)
        vector: list[float] = (mean / np.linalg.norm(mean)).tolist()
        return vector

    def _layer(self, hidden: Array, at: str) -> Array:
        heads = self._config.num_attention_heads
        size = self._config.hidden_size // heads

        def split_heads(name: str) -> Array:
            projected = self._through(hidden, f"{at}attention.self.{name}")
            return projected.reshape(-1, heads, size).transpose(1, 0, 2)

        query, key, value = split_heads("query"), split_heads("key"), split_heads("value")
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(size)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        seen = (scores @ value).transpose(1, 0, 2).reshape(len(hidden), -1)
        seen = self._through(seen, at + "attention.output.dense") + hidden
        seen = self._even(seen, at + "attention.output.LayerNorm")
        inner = gelu(self._through(seen, at + "intermediate.dense"))
        inner = self._through(inner, at + "output.dense") + seen
        return self._even(inner, at + "output.LayerNorm")

    def _through(self, hidden: Array, name: str) -> Array:
        return hidden @ self._weights[name + ".weight"].T + self._weights[name + ".bias"]

    def _even(self, hidden: Array, name: str) -> Array:
        apart = hidden - hidden.mean(axis=-1, keepdims=True)
        spread = np.sqrt((apart**2).mean(axis=-1, keepdims=True) + self._config.layer_norm_eps)
        return apart / spread * self._weights[name + ".weight"] + self._weights[name + ".bias"]


def gelu(hidden: Array) -> Array:
    """Calculate the Gaussian error linear unit, as the models were trained with it."""
    x = hidden / math.sqrt(2)
    t = 1 / (1 + _ERF_P * np.abs(x))
    series = t * (_ERF[0] + t * (_ERF[1] + t * (_ERF[2] + t * (_ERF[3] + t * _ERF[4]))))
    erf = np.sign(x) * (1 - series * np.exp(-x * x))
    return hidden * (1 + erf) / 2
