//! Names HDF5, so that cargo fetches its source: see Cargo.toml.
