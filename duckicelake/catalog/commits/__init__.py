"""The verbs that change a lake: each reads under the lake's lock, lets `translate` say which rows, and writes them."""
