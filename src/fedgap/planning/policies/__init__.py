"""The policies that come with fedgap, one per file; ``fedgap.registry.POLICIES`` lists them."""
