"""``python -m fedgap``."""

from fedgap.cli import main

if __name__ == "__main__":
    main()
