//! A client of a space: it knows what all targets together know, and asks them.
//!
//! `finding` begins with a space's name, `peer` is one target, `daemons` where it is found, `names` the space's catalogue as it is heard, `leased` what is known of it for certain, `upload` a new file, `reader` the bytes of one, with a cache, `hedged` asks one of those that have the same, `replicating` makes second copies, `repair` what
//! fetches lost bytes from a file's source, `examine` finds what targets lack, `healer` has that fetched while nobody reads it, `watching` while no job uses the space, `touches` what mounts tell targets about who reads what, `events` what happens that the daemon is told, `event_feed` tells it.
//! `holds` tells targets what ranks have open for writing, `offload` asks for it before files are sent away.
//! `writer` is what ranks write, `written_ranges` how bytes come to both copies, `written_blocks` how that is read and what a node keeps of it, `making` the names that they make, `conflicts` what becomes of two files of one name, `half_made` of one that nobody ended making, `lost` which copies are to be made anew, `moving` how one comes onto another target,
//! `written_copies` whether both are as they were written.

mod cache;
mod conflicts;
mod daemons;
mod event_feed;
mod events;
mod examine;
mod finding;
mod half_made;
mod healer;
mod hedged;
mod holds;
mod leased;
mod lost;
mod making;
mod moving;
mod names;
mod offload;
mod peer;
mod reader;
mod repair;
mod replicating;
mod touches;
mod upload;
mod watching;
mod writer;
mod written_blocks;
mod written_copies;
mod written_ranges;

pub use cache::Cache;
pub use examine::{Examined, Found};
pub use finding::{find, find_unhedged};
pub use healer::heal_while_used;
pub use holds::Holds;
pub use names::{Client, TargetCapacity, as_it_is_now};
pub use offload::Writing;
pub use reader::{Content, Pattern, Reader};
pub use repair::Repairer;
pub use replicating::Copying;
pub use touches::{Seen, Touches};
pub use upload::{NotSeen, Upload};
pub use watching::watch;
pub use writer::{Refused, Writer};
pub use written_copies::{BadCopies, ExaminedCopies};
