//! A target: a directory of a node in which objects of a space and its entries are kept. One process serves one directory.
//!
//! `store` is what is on the medium, `serve` who may ask for it.

mod serve;
mod store;

pub use serve::run;
