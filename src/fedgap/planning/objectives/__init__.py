"""The objectives that come with fedgap, one per file; ``fedgap.registry.OBJECTIVES`` lists them."""
