"""WebShop: an online shop in text. Search, look at pages, choose options, buy."""
