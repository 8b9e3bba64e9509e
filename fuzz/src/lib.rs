//! What the targets read out of the engine's bytes, in a form that can also be written: so that the kept first inputs
//! (`seeds`) come from what they stand for, and are seen to be outdated when a format changes.

pub mod chains;
mod damage;
pub mod images;
pub mod input;
pub mod ofi;
pub mod records;
pub mod sealed;
#[cfg(test)]
mod seeds;
