//! What this node has to spare: told to controllers with every answer to a ping.

use mend_messages::daemon::NodeRoom;
use std::time::{Duration, Instant};

/// As it is now. What cannot be told is 0.
pub fn now() -> NodeRoom {
    let memory = mend_kernel::memory::pools().iter().map(|pool| pool.free).min().unwrap_or(0);
    let processors = std::thread::available_parallelism().map_or(0, |count| u32::try_from(count.get()).unwrap_or(u32::MAX));
    NodeRoom { memory, processors, load: load(&std::fs::read_to_string("/proc/loadavg").unwrap_or_default()) }
}

/// As it was at most this long ago. Linux computes its load every five seconds.
const MAX_ROOM_AGE: Duration = Duration::from_secs(5);

/// What was read last: pings come more often than it is worth reading, which takes sixty system calls.
#[derive(Debug, Default)]
pub struct RecentRoom(Option<(Instant, NodeRoom)>);

impl RecentRoom {
    /// As it is, or was within the last five seconds, if it was not [forgotten](RecentRoom::forget) since.
    pub fn now(&mut self) -> NodeRoom {
        match self.0 {
            Some((read, room)) if read.elapsed() < MAX_ROOM_AGE => room,
            _ => self.0.insert((Instant::now(), now())).1,
        }
    }

    /// A rank has come or gone: the next answer is read anew.
    pub fn forget(&mut self) {
        self.0 = None;
    }
}

/// Memory of the machine, bytes; 0 if it cannot be told.
pub fn memory() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    mend_kernel::memory::number(&meminfo, "MemTotal:").map_or(0, |kib| kib.saturating_mul(1024))
}

fn load(loadavg: &str) -> u32 {
    let last_minute = loadavg.split_ascii_whitespace().next().and_then(|number| number.parse::<f64>().ok());
    last_minute.map_or(0, |load| (load * 100.0) as u32)
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_machine_has_something_to_spare() {
        let room = super::now();
        assert!(room.memory > 0 && room.processors > 0, "{room:?}");
        assert!(super::memory() >= room.memory);
        assert_eq!(super::load("1.25 0.90 0.80 2/345 6789\n"), 125);
        assert_eq!(super::load("none"), 0);
    }
}
