"""What one call to a model used, in the provider's own numbers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, NonNegativeInt


class CallUsage(BaseModel):
    """The tokens of one call. Each token is in exactly one of the first five members.

    `input_tokens` were neither read from a cache nor written to one; `output_tokens` include
    `reasoning_tokens`, which is None where the provider does not tell them apart.
    """

    model_config = ConfigDict(frozen=True)

    input_tokens: NonNegativeInt = 0
    cached_input_tokens: NonNegativeInt = 0
    cache_write_5m_tokens: NonNegativeInt = 0
    cache_write_1h_tokens: NonNegativeInt = 0
    output_tokens: NonNegativeInt = 0
    reasoning_tokens: NonNegativeInt | None = None

    @property
    def cache_write_tokens(self) -> int:
        """Written to a cache, however long it lives."""
        return self.cache_write_5m_tokens + self.cache_write_1h_tokens

    @property
    def prompt_tokens(self) -> int:
        """All that went in; the number that long-context prices go by."""
        return self.input_tokens + self.cached_input_tokens + self.cache_write_tokens

    def __add__(self, other: CallUsage) -> CallUsage:
        """Both together; reasoning is unknown only when neither told it."""
        reasoning = [n for n in (self.reasoning_tokens, other.reasoning_tokens) if n is not None]
        return CallUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            cache_write_5m_tokens=self.cache_write_5m_tokens + other.cache_write_5m_tokens,
            cache_write_1h_tokens=self.cache_write_1h_tokens + other.cache_write_1h_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=sum(reasoning) if reasoning else None,
        )
