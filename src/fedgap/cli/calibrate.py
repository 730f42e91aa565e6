"""``fedgap calibrate``."""
def calibrate() -> None:
    """TODO."""
