"""WebShop, clean-room: the shop, its goals and its pages without Flask, Java or torch."""

from coevolve.envs.webshop.env import WebShop

__all__ = ["WebShop"]
