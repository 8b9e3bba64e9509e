//! What is known of staged files, and what is decided about them. Nothing here touches a file or a socket: `mend-data` (crate mend-staging) does.
//!
//! `record` is what a file remembers of its sources, `sums` its checksums, `ranges` the arithmetic on them, `damage` what is wrong with a file,
//! `resume` the log of a file that is still being fetched, `plan` which source is asked for which range and who is to blame, `uri` what sources
//! are called, `directives` what job scripts say, `dialogue` the lines between a plug-in and Mend, `request` what `mend` asks of `mend-data`, `space` files
//! striped over the nodes of a job, `offload` what of them is sent away, `patterns` which ranks touch which of their blocks.

pub mod damage;
pub mod dialogue;
pub mod directives;
pub mod offload;
pub mod patterns;
pub mod plan;
pub mod ranges;
pub mod record;
pub mod request;
pub mod resume;
pub mod space;
pub mod sums;
pub mod uri;
