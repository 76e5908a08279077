"""``python -m reproduction TABLE ...``, the same as ``temper reproduce TABLE ...``."""

import sys

from temper.cli.app import main

if __name__ == "__main__":
    main(["reproduce", *sys.argv[1:]])
