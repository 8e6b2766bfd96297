"""What the gateway knows of models: whose they are, what they cost, and with which key they are asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog
from pydantic import SecretStr

from domain.models import SCRIPTED
from domain.prices import ModelPrice, PriceBook
from gateway.denials import Denial
from gateway.ledger import answering
from gateway.recent import Recent
from gateway.upstreams import Upstream
from store.database import Database
from store.keys import GrantedModel, KeyGrant
from store.prices import current_prices
from store.provider_keys import UnreadableProviderKey, provider_key
from store.server_secret import ServerSecret

log = structlog.get_logger()

# An operator's new price or key counts after this long.
AGE_SEC = 5.0
_BOOK = "book"


@dataclass
class Catalog:
    """`scripted_prices` are those of the scripted upstream's models, `keys` the environment's own."""

    db: Database
    secret: ServerSecret
    upstreams: Mapping[str, Upstream]
    keys: Mapping[str, SecretStr]
    scripted_prices: Mapping[str, ModelPrice] = field(default_factory=lambda: dict[str, ModelPrice]())
    _books: Recent[PriceBook] = field(default_factory=lambda: Recent[PriceBook](AGE_SEC))
    _provider_keys: Recent[str] = field(default_factory=lambda: Recent[str](AGE_SEC))

    def upstream(self, model: GrantedModel) -> Upstream:
        """Who answers a call. Raises `Denial` for one that nobody does."""
        found = self.upstreams.get(model.provider)
        if found is None:
            raise Denial("no_model", f"{model.name}: the upstream {model.provider} is not set up here")
        return found

    async def price(self, model: GrantedModel) -> ModelPrice:
        """Raises `Denial`: what has no price is not called."""
        if model.provider == SCRIPTED:
            found = self.scripted_prices.get(model.upstream_model)
        else:
            async with answering():
                found = (await self._prices()).price(model.provider, model.upstream_model)
        if found is None:
            raise Denial("no_price", f"{model.name}: the price of {model.upstream_model} is not known")
        return found

    async def provider_key(self, upstream: Upstream, grant: KeyGrant) -> str | None:
        """The user's own key, else the operator's, else the environment's. Raises `Denial`."""
        if upstream.auth == "none":
            return None
        of_whom = (upstream.name, grant.owner_user_id)
        key = self._provider_keys.get(of_whom)
        if key is not None:
            return key
        try:
            async with answering():
                key = await provider_key(self.db, self.secret, *of_whom)
        except UnreadableProviderKey as error:
            # Not passed over for another key: that would be billed to somebody else.
            log.error("a provider's key cannot be read", provider=upstream.name, error=str(error))
            raise Denial("no_provider_key", f"the gateway cannot read its key of {upstream.name}") from None
        if key is None and upstream.name in self.keys:
            key = self.keys[upstream.name].get_secret_value()
        if key is None:
            raise Denial("no_provider_key", f"the gateway has no key of {upstream.name}")
        self._provider_keys.put(of_whom, key)
        return key

    async def _prices(self) -> PriceBook:
        book = self._books.get(_BOOK)
        if book is None:
            book = await current_prices(self.db)
            self._books.put(_BOOK, book)
        return book
