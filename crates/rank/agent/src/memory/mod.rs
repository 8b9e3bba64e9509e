//! The program's address space: what is mapped ([`maps`]), what of it an image holds ([`layout`]), and what else belongs to a mapping.

pub(crate) mod address_space;
pub(crate) mod deleted;
pub(crate) mod file_fingerprints;
pub(crate) mod guards;
pub(crate) mod layout;
pub(crate) mod lines;
pub(crate) mod mapping_attributes;
pub(crate) mod maps;
pub(crate) mod pages;
