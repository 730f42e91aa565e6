"""Aggregators: how the server combines the updates of a round's clients."""


def trimmed_mean(updates, kept):
    """The mean of each coordinate without its lowest and its highest value, which a faulty client may have sent.

    ``updates`` has one row per client and one column per weight. With fewer than three clients nothing is trimmed.
    """
    if len(updates) < 3:
        return updates.mean(dim=0)
    return updates.sort(dim=0).values[1:-1].mean(dim=0)
