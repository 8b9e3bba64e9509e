//! The libfabric ABI: structures, constants and operation tables, as a provider loaded through `FI_PROVIDER_PATH` needs
//! them, and as the user of another provider does ([`library`], [`instance`]).
//!
//! Facts from the public headers of libfabric 2.5 (`include/rdma/*.h`, `include/rdma/providers/fi_prov.h`),
//! x86-64 System V layout. The layouts are asserted at compile time against the sizes and offsets that a C
//! compiler gives for those headers. Only what Mend provides or reads is declared; operation tables are declared
//! whole, because a caller may index anything that `size` covers.

pub mod completion;
pub mod constants;
pub mod core_provider;
pub mod instance;
pub mod library;
pub mod objects;
mod rdma;
pub mod transfer;

pub use completion::*;
pub use constants::*;
pub use instance::*;
pub use library::*;
pub use objects::*;
pub use transfer::*;
