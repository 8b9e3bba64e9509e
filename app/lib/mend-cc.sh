#!/bin/sh
# mend-cc as it stands beside libmend-app, in bin/: that library is the one it takes.
home=$(dirname "$(dirname "$(readlink -f "$0")")")
MEND_APP_HOME=${MEND_APP_HOME:-$home} exec python3 "$home/share/mend-cc/mend-cc" "$@"
