"""One addition of every kind that fedgap takes, each in a file of at most 30 lines."""
