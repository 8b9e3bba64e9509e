#!/usr/bin/env bash
# What of mend-cc takes minutes: whether the corpus's labels are true when its programs run, and whether each registered variable of each program counts.
set -euo pipefail
cd "$(dirname "$0")"
python=../../../${MEND_VENV:-.venv}/bin/python3
"$python" labels.py
MEND_CC_EACH=yes "$python" -m unittest test_restart test_fortran.Restarted test_starts.Fortran
