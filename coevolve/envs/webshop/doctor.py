"""Checks that the tagger which finds the nouns of titles is installed here."""

from coevolve.assets.checks import Check, run_check
from coevolve.envs.webshop.config import WebShopConfig
from coevolve.envs.webshop.tagger import load_tagger


def check(config: WebShopConfig | None) -> Check:
    """Loads the tagger that the section names; without a section, the one that needs no package."""
    return run_check("WebShop's tagger", lambda: str(load_tagger(config.tagger if config else "approximate")))
