"""WebShop, clean-room: the shop, its goals and its pages without Flask, Java or torch."""
