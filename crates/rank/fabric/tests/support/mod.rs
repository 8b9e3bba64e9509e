//! The libfabric that tests of core providers use.

use mend_fabric_sys::core_provider::environment;
use std::ffi::CString;

/// MPICH's, by its path without links.
pub fn libfabric() -> CString {
    let venv = std::env::var("MEND_VENV").unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../.venv").into());
    CString::new(std::fs::canonicalize(format!("{venv}/lib/mpich/libfabric.so.1")).unwrap().into_os_string().into_encoded_bytes()).unwrap()
}

/// What an instance of our own is to see of the environment.
pub fn variables(provider: &str) -> Vec<mend_fabric_sys::Variable> {
    environment::of_instance(&std::env::vars_os().collect::<Vec<_>>(), provider, &|path| path.is_file())
}
