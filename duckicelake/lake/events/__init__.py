"""The outbox: the lake snapshots of a lake as rows for events, expired ones too."""
