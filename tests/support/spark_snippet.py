"""What `connect` prints for Spark, as settings of a session that runs already."""

import shlex


def read_spark_settings(snippet: str) -> dict[str, str]:
    """Return the value of each `--conf` of a printed `spark-sql` command.

    The environment of Java that runs cannot change, so each `env:NAME` is replaced by what the snippet exports as NAME.
    """
    words = shlex.split(snippet.replace("\\\n", " "))
    start = words.index("spark-sql")
    exports = {f"env:{name}": text for name, _, text in (word.partition("=") for word in words[:start] if word != "export")}
    settings = (words[place + 1].partition("=") for place, word in enumerate(words) if word == "--conf")
    return {name: exports.get(text, text) for name, _, text in settings}
