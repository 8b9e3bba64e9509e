"""`python3 -m mend_cc`, and the command that pip installs."""

import sys


def main():
    """Exit code. What is missing is said, though it is needed to import the rest."""
    try:
        from .command import main as command
    except ImportError as error:
        if (error.name or "").split(".", maxsplit=1)[0] not in ("clang", "fparser"):
            raise
        print(f"mend-cc: {error.name} is missing: pip install libclang fparser", file=sys.stderr)
        return 1
    return command()


if __name__ == "__main__":
    sys.exit(main())
