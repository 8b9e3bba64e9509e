//! A real mendd, played with by a controller over its own protocol. As root everything runs twice: as root and, by
//! setpriv(1), as an ordinary user. Needs `sh`, `cc` and `setpriv`, as the rest of the build does.

mod agents;
mod breaks;
mod controller;
mod ends;
mod handshakes;
mod hangs;
mod namespaces;
mod programs;
mod restores;
