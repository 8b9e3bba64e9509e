"""Prints where cargo put HDF5's source, from `cargo metadata` on standard input."""

import json
import os
import sys

packages = json.load(sys.stdin)["packages"]
manifest = next(package["manifest_path"] for package in packages if package["name"] == "hdf5-metno-src")
print(os.path.join(os.path.dirname(manifest), "ext", "hdf5"))
