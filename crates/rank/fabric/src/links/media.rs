//! Which medium a channel gets, and the life of the port that `ofi` channels share.

use super::Links;
use crate::channel::ofi::port::{Port, SharedPort, lock};
use crate::channel::{ChannelError, Medium};
use crate::peer::Outbound;
use crate::report;
use crate::watch::{Interest, Token};
use mend_fabric_sys::core_provider::{CoreError, Origin, environment};
use mend_fabric_sys::{Instance, InstanceError, Library, path_of_loaded};
use mend_messages::job::Rank;
use mend_settings::{CHANNELS, OFI_LIBFABRIC, OFI_PROVIDER};
use rustix::fd::BorrowedFd;

/// What the user wants, and what has become of it.
#[derive(Default)]
pub struct Media {
    /// By preference; `None` until it has been read from the settings.
    pub(super) order: Option<Vec<Medium>>,
    pub(super) provider: String,
    /// The port's libfabric is not the program's.
    pub(super) own: bool,
    /// The user knows that there is no libfabric of our own.
    told: bool,
    port: Option<SharedPort>,
    /// It could not be opened here: not tried again on this node.
    failed: bool,
    /// Rounds until the port is polled again.
    rest: u32,
}

/// Rounds between two polls of the port when rings are open too: it costs a system call with some providers.
const POLL_EVERY_MIXED: u32 = 4;

impl Links {
    /// Reads the settings, once in a process's life.
    pub(super) fn choose_media(&mut self) {
        if self.media.order.is_some() {
            return;
        }
        let words = CHANNELS.words().unwrap_or_else(|error| {
            report::fault(self.rank(), format_args!("{error}; {} is used", CHANNELS.default));
            CHANNELS.default.split(',').map(str::trim).collect()
        });
        self.media.order = Some(words.into_iter().filter_map(Medium::named).collect());
        self.media.provider = OFI_PROVIDER.text();
        let whose = OFI_LIBFABRIC.choice().unwrap_or_else(|error| {
            report::fault(self.rank(), format_args!("{error}; {} is used", OFI_LIBFABRIC.default));
            OFI_LIBFABRIC.default
        });
        self.media.own = whose == "own";
    }

    /// The medium of a new channel to this rank.
    pub(super) fn medium(&mut self, rank: Rank) -> Medium {
        let near = {
            let node = |rank: Rank| self.peers.get(rank as usize).and_then(|peer| peer.entry.as_ref()).map(|entry| entry.node);
            node(rank).is_some() && node(rank) == self.identity.as_ref().map(|identity| identity.node)
        };
        // What goes over a core provider cannot be encrypted. The controller refuses such a job; a rank's environment may say otherwise.
        let refused = self.identity.as_ref().is_some_and(|identity| identity.encrypted)
            || self.peers.get(rank as usize).is_some_and(|peer| peer.refused == Some(peer.generation));
        for at in 0..self.media.order.as_ref().map_or(0, Vec::len) {
            match self.media.order.as_ref().map(|order| order[at]) {
                Some(Medium::Shm) if near => return Medium::Shm,
                Some(Medium::Ofi) if !refused && self.port().is_some() => return Medium::Ofi,
                Some(Medium::Tcp) => return Medium::Tcp,
                _ => {}
            }
        }
        Medium::Tcp
    }

    /// The port, opened if it is not. `None` if it cannot be, or has failed since.
    pub(super) fn port(&mut self) -> Option<SharedPort> {
        if self.media.port.is_none() && !self.media.failed {
            let ip = self.identity.as_ref()?.ip;
            let opened = match self.origin() {
                Some(origin) => Port::open(origin, &self.media.provider, ip),
                None => Err(CoreError::NoLibrary),
            };
            match opened {
                Ok(port) => {
                    self.watch_port(&port);
                    self.media.port = Some(port);
                }
                Err(error) => {
                    self.media.failed = true;
                    let hint = match error {
                        CoreError::Locked { .. } => "raise the limit on locked memory (ulimit -l) for mendd",
                        _ => "see MEND_OFI_PROVIDER, and what `fi_info` finds on this node",
                    };
                    report::fault(self.rank(), format_args!("no ofi channels here: {error}; others are used (hint: {hint})"));
                }
            }
        }
        self.media.port.clone().filter(|port| !lock(port).broken())
    }

    /// A libfabric for the port: the program's, or one of our own of the same file, where that is wanted and can be. `None` if the
    /// program has none. This is called when the first channel is opened: libfabric loads this provider before it can be asked.
    fn origin(&mut self) -> Option<Origin> {
        if !self.media.own {
            return Library::loaded().map(Origin::Programs);
        }
        let variables = || {
            let program: Vec<_> = std::env::vars_os().collect();
            environment::of_instance(&program, &self.media.provider, &|path| path.is_file())
        };
        let own = match path_of_loaded() {
            Some(path) => Instance::open(&path, &variables),
            None => Err(InstanceError::Refused("it is part of another library".into())),
        };
        match own {
            Ok(instance) => Some(Origin::Own(instance)),
            Err(error) => {
                let library = Library::loaded()?;
                if !std::mem::replace(&mut self.media.told, true) {
                    let hint = "a provider that keeps a device open, as verbs does, is in the way of checkpoints and moves then";
                    report::fault(
                        self.rank(),
                        format_args!("ofi channels use the program's libfabric, which cannot be loaded twice: {error} (hint: {hint})"),
                    );
                }
                Some(Origin::Programs(library))
            }
        }
    }

    fn watch_port(&self, port: &SharedPort) {
        if let (Some(watch), Some(wait)) = (&self.watch, lock(port).wait()) {
            // SAFETY: the provider's descriptor, open as long as the port.
            let descriptor = unsafe { BorrowedFd::borrow_raw(wait) };
            // Without it a sleep ends by itself, a little later.
            let _ = watch.add(descriptor, Token::Port, Interest::Level);
        }
    }

    /// Drives the port, if it is open. True if anything came.
    #[inline]
    pub(super) fn poll_port(&mut self) -> bool {
        let Some(port) = &self.media.port else { return false };
        if self.media.rest > 0 && !self.urgent {
            self.media.rest -= 1;
            return false;
        }
        let rings = self.polled.len() > self.without_keeping;
        self.media.rest = if rings { POLL_EVERY_MIXED - 1 } else { 0 };
        let (moved, failed) = {
            let mut port = lock(port);
            (port.poll(), port.take_failed())
        };
        if failed {
            // Those that have nothing to send would not notice.
            for rank in 0..self.peers.len() {
                if matches!(self.peers[rank].outbound, Outbound::Open(_)) {
                    self.list(rank as Rank);
                }
            }
        }
        moved
    }

    /// About to sleep. False if the port has something.
    pub(super) fn port_may_sleep(&self) -> bool {
        self.media.port.as_ref().is_none_or(|port| lock(port).may_sleep())
    }

    /// True when the provider has nothing left to send.
    pub(super) fn port_quiet(&self) -> bool {
        self.media.port.as_ref().is_none_or(|port| lock(port).quiet())
    }

    /// True while a core provider's objects are open in this process.
    pub(crate) fn port_open(&self) -> bool {
        self.media.port.is_some()
    }

    /// Reads of peers' memory over the port.
    #[cfg(test)]
    pub(super) fn port_reads(&self) -> u64 {
        self.media.port.as_ref().map_or(0, |port| lock(port).reads())
    }

    /// Before an image is taken, when everything is drained: closes the channels that cannot be in it, then the port.
    pub(crate) fn close_port(&mut self) {
        for number in 0..self.inbound.len() {
            if self.inbound[number].as_ref().is_some_and(|inbound| !inbound.channel.keeps())
                && let Some(inbound) = self.inbound[number].take()
            {
                let (rank, lost) = (inbound.rank, !inbound.drained);
                self.drop_inbound(number as u32, *inbound);
                if lost {
                    // Its sender sent no marker, and is not known to have ended.
                    self.note_loss(rank, &ChannelError::Closed);
                }
            }
        }
        self.pending_handshakes.clear();
        for peer in &mut self.peers {
            let gone = match &peer.outbound {
                Outbound::Opening(_) => true,
                Outbound::Open(channel) | Outbound::Suspended(channel) | Outbound::Draining { channel, .. } => !channel.keeps(),
                _ => false,
            };
            if gone {
                peer.outbound = Outbound::UNKNOWN;
                peer.used = false;
            }
        }
        if let (Some(watch), Some(wait)) = (&self.watch, self.media.port.as_ref().and_then(|port| lock(port).wait())) {
            // SAFETY: the provider's descriptor, open as long as the port.
            watch.remove(unsafe { BorrowedFd::borrow_raw(wait) });
        }
        self.media.port = None;
    }

    /// In a restored process: another node may have what the last one had not.
    pub(super) fn forget_port(&mut self) {
        // No image holds an open port; if one did, closing it would touch descriptors that are somebody else's here.
        std::mem::forget(self.media.port.take());
        self.media.failed = false;
    }
}
