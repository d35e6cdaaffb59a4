"""Requests to change a table or view: what they ask (updates), what they rely on (requirements), and what comes of them."""
