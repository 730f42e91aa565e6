"""fedgap."""
