"""WebShop, reimplemented: shop, search engine, goals, pages and reward without Flask, Java or torch."""
