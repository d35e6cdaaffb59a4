"""Events: what each lake snapshot changed, whoever made it, as CloudEvents."""
