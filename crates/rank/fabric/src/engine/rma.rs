//! Remote memory access: by the origin alone, where the target has granted that ([`Outlet::access`]), else by packets, so that
//! the target's processor copies.
//!
//! Both ways keep the order of one rank's operations on one target: as long as one of them waits for its answer, those that
//! follow go by packets, too. A direct one is complete when its call returns; what it does not reach goes by packets, whose
//! target then says what is wrong. Bytes that were written already are written again.

use super::buffers::{Buffers, MAX_SEGMENTS, Payload, Segment, slice};
use super::completion::Completion;
use super::packet::{Header, Kind, flag};
use super::send::EAGER_LIMIT;
use super::{Class, Engine, Fault, Operation, Outlet, Stream};
use mend_fabric_sys::{
    FI_EACCES, FI_EAGAIN, FI_EINVAL, FI_EMSGSIZE, FI_ENOKEY, FI_INJECT, FI_READ, FI_REMOTE_CQ_DATA, FI_REMOTE_READ, FI_REMOTE_WRITE,
    FI_RMA, FI_WRITE,
};
use mend_messages::job::Rank;

/// Memory that peers may access.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// First address.
    pub base: usize,
    /// Bytes. Peers address them from 0.
    pub len: usize,
    /// `FI_REMOTE_READ`, `FI_REMOTE_WRITE`.
    pub access: u64,
}

/// Leave to access a region of a peer without its taking part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// First address, in the peer.
    pub base: u64,
    /// The length in bytes.
    pub length: u64,
    /// `FI_REMOTE_READ`, `FI_REMOTE_WRITE`.
    pub access: u64,
    /// The peer's version in which it is good.
    pub version: u64,
}

impl Grant {
    /// What a packet grants.
    pub(super) fn told(header: &Header) -> Self {
        Self { base: header.address, length: header.length, access: u64::from(header.aux), version: header.id }
    }

    /// Where `length` bytes are in the peer, if they may be accessed so.
    #[must_use]
    pub fn locate(&self, wanted: &RegionAccess, length: usize) -> Option<u64> {
        let right = if wanted.write { FI_REMOTE_WRITE } else { FI_REMOTE_READ };
        let end = wanted.address.checked_add(length as u64)?;
        self.base.checked_add(end)?;
        (self.access & right != 0 && end <= self.length).then(|| self.base + wanted.address)
    }
}

/// What is accessed, and how.
#[derive(Clone, Copy, Debug)]
pub struct RegionAccess {
    /// To write, else to read.
    pub write: bool,
    /// Key of the region.
    pub key: u64,
    /// Offset in it.
    pub address: u64,
}

/// What became of an access without the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// All of it is in place.
    Done,
    /// It can be, but not now: one of the two ranks is suspended.
    Later,
    /// It has to go by packets, all of it, although some may be in place.
    Not,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It goes by packets, and its completion will tell of its end.
    Waits,
    /// It is complete.
    Complete,
    /// So many bytes are done. It is to be started again with these in [`Transfer::done`], after others had their turn.
    Partly(usize),
}

/// Bytes accessed directly in one go: less than half a millisecond.
const DIRECT_BYTES: usize = 1 << 20;

/// An RMA operation to start.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// Target: rank and endpoint.
    pub to: (Rank, u16),
    /// Key of the target's region.
    pub key: u64,
    /// Offset in it.
    pub address: u64,
    /// Local memory.
    pub segments: &'a [Segment],
    /// Remote completion data of a write.
    pub data: Option<u64>,
    /// The application's context pointer.
    pub context: usize,
    /// Operation flags.
    pub flags: u64,
    /// The buffer is the application's again when the call returns.
    pub inject: bool,
    /// Bytes of it that are done.
    pub done: usize,
}

impl Transfer<'_> {
    fn length(&self) -> Result<usize, i32> {
        if self.segments.len() > MAX_SEGMENTS {
            return Err(FI_EINVAL);
        }
        Ok(self.segments.iter().map(|segment| segment.len).sum())
    }
}

/// An operation that waits for its target.
#[derive(Debug)]
pub(crate) struct Transfering {
    pub endpoint: u16,
    pub peer: Rank,
    context: usize,
    report: bool,
    /// The links still read the buffers (of a write).
    pub streaming: bool,
}

/// A read that is arriving.
#[derive(Debug)]
pub(crate) struct Reading {
    pub transfer: Transfering,
    buffers: Buffers,
    length: usize,
    received: usize,
}

impl Reading {
    /// The memory that data from this peer may fill, and how much of it.
    pub(super) fn room(&self, peer: Rank) -> Option<(&Buffers, usize)> {
        (self.transfer.peer == peer).then_some((&self.buffers, self.length))
    }
}

fn buffers(segments: &[Segment], done: usize) -> Buffers {
    match segments {
        [one] => Buffers::One(Segment { base: one.base.wrapping_add(done), len: one.len - done }),
        many => Buffers::Many(slice(many, done, usize::MAX).segments().into()),
    }
}

impl Engine {
    /// Exposes memory under a key.
    ///
    /// # Errors
    /// `FI_ENOKEY` if the key is taken.
    pub fn register(&mut self, key: u64, region: Region) -> Result<(), i32> {
        if self.regions.contains_key(&key) {
            return Err(FI_ENOKEY);
        }
        self.regions.insert(key, region);
        Ok(())
    }

    /// Ends the exposure: reads under way by packets are refused, and this process touches the memory for peers no more after this
    /// returns. Nor do peers, but for one that has begun to copy by itself: that a region is not closed before the operations on
    /// it are complete is up to the program, as fi_mr(3) and `MPI_Win_free` have it. What such a copy has read does not count.
    pub fn unregister(&mut self, out: &mut impl Outlet, key: u64) {
        self.regions.remove(&key);
        out.revoke();
        for (peer, header) in out.withdraw(&|stream| stream.region == Some(key)) {
            let mut answer = Header::new(Kind::Ack);
            answer.to = header.to;
            answer.from = header.from;
            answer.id = header.id;
            answer.aux = FI_ENOKEY as u32;
            out.post(peer, &answer, &[]);
        }
    }

    /// Starts a write. It completes when the target's memory has changed.
    ///
    /// # Errors
    /// `FI_EAGAIN`, `FI_EINVAL`, `FI_EMSGSIZE`.
    pub fn write(&mut self, out: &mut impl Outlet, endpoint: u16, transfer: &Transfer<'_>) -> Result<Begun, i32> {
        let whole = transfer.length()?;
        if (transfer.inject || transfer.flags & FI_INJECT != 0) && whole > EAGER_LIMIT {
            return Err(FI_EMSGSIZE);
        }
        let report = !transfer.inject && self.reports(endpoint, Class::Write, transfer.flags);
        if let Some(done) = self.access(out, Kind::Write, transfer, whole)? {
            if done < whole {
                return Ok(Begun::Partly(done));
            }
            let completion = Completion { context: transfer.context, flags: FI_RMA | FI_WRITE, ..Completion::default() };
            self.calls += 1;
            self.traffic.count(transfer.to.0, whole);
            self.finish(endpoint, Class::Write, report, completion);
            return Ok(Begun::Complete);
        }
        let length = whole - transfer.done;
        let mut header = prepare(out, Kind::Write, endpoint, transfer, length)?;
        if let Some(data) = transfer.data {
            header.flags |= flag::DATA;
            header.data = data;
        }
        let streaming = length > EAGER_LIMIT;
        let waiting = Transfering { endpoint, peer: transfer.to.0, context: transfer.context, report, streaming };
        header.id = self.operations.insert(Operation::Write(waiting));
        *self.waiting.entry(transfer.to.0).or_default() += 1;
        self.calls += 1;
        self.traffic.count(transfer.to.0, whole);
        if length <= EAGER_LIMIT {
            header.payload = length as u32;
            header.flags |= flag::LAST;
            out.post(transfer.to.0, &header, slice(transfer.segments, transfer.done, length).segments());
        } else {
            let (operation, base) = (header.id, header.address);
            let buffers = buffers(transfer.segments, transfer.done);
            out.stream(transfer.to.0, Stream { header, buffers, base, offset: 0, length, operation, region: None });
        }
        Ok(Begun::Waits)
    }

    /// Starts a read.
    ///
    /// # Errors
    /// `FI_EAGAIN`, `FI_EINVAL`.
    pub fn read(&mut self, out: &mut impl Outlet, endpoint: u16, transfer: &Transfer<'_>) -> Result<Begun, i32> {
        let whole = transfer.length()?;
        let report = self.reports(endpoint, Class::Read, transfer.flags);
        let done = if whole == 0 { Some(0) } else { self.access(out, Kind::Read, transfer, whole)? };
        if let Some(done) = done {
            if done < whole {
                return Ok(Begun::Partly(done));
            }
            let completion = Completion { context: transfer.context, flags: FI_RMA | FI_READ, ..Completion::default() };
            self.calls += 1;
            self.traffic.count(transfer.to.0, whole);
            self.finish(endpoint, Class::Read, report, completion);
            return Ok(Begun::Complete);
        }
        let length = whole - transfer.done;
        let mut header = prepare(out, Kind::Read, endpoint, transfer, length)?;
        let waiting = Transfering { endpoint, peer: transfer.to.0, context: transfer.context, report, streaming: false };
        let reading = Reading { transfer: waiting, buffers: buffers(transfer.segments, transfer.done), length, received: 0 };
        header.id = self.operations.insert(Operation::Read(reading));
        *self.waiting.entry(transfer.to.0).or_default() += 1;
        self.calls += 1;
        self.traffic.count(transfer.to.0, whole);
        out.post(transfer.to.0, &header, &[]);
        Ok(Begun::Waits)
    }

    /// The next part of an operation without the target, if that can be. The bytes that are done then. What only has to wait is
    /// tried again by the application: a packet would need the target in its MPI library, where it may not be for long.
    fn access(&mut self, out: &mut impl Outlet, kind: Kind, transfer: &Transfer<'_>, whole: usize) -> Result<Option<usize>, i32> {
        let peer = transfer.to.0;
        if transfer.data.is_some() || whole == 0 || self.waiting.contains_key(&peer) {
            return Ok(None);
        }
        let part = DIRECT_BYTES.min(whole - transfer.done);
        let Some(address) = transfer.address.checked_add(transfer.done as u64) else { return Ok(None) };
        let wanted = RegionAccess { write: kind == Kind::Write, key: transfer.key, address };
        let reached = if part == whole {
            out.access(peer, &wanted, transfer.segments)
        } else {
            out.access(peer, &wanted, slice(transfer.segments, transfer.done, part).segments())
        };
        match reached {
            Reached::Done => Ok(Some(transfer.done + part)),
            Reached::Later => Err(FI_EAGAIN),
            Reached::Not => Ok(None),
        }
    }

    /// An operation that waited for this peer is over.
    pub(super) fn waited(&mut self, peer: Rank) {
        if let Some(count) = self.waiting.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(&peer);
            }
        }
    }

    /// Answers who asks for a grant: one that allows nothing if there can be none.
    fn grant(&self, out: &mut impl Outlet, peer: Rank, header: &Header) {
        if !header.has(flag::ASKS) {
            return;
        }
        let mut grant = Header::new(Kind::Grant);
        (grant.from, grant.to, grant.tag) = (header.to, header.from, header.tag);
        if let (Some(region), Some(version)) = (self.regions.get(&header.tag), out.version(peer)) {
            (grant.address, grant.length) = (region.base as u64, region.len as u64);
            (grant.aux, grant.id) = (region.access as u32, version);
        }
        out.post(peer, &grant, &[]);
    }

    fn region(&self, key: u64, address: u64, length: u64, access: u64) -> Result<usize, i32> {
        let region = self.regions.get(&key).ok_or(FI_ENOKEY)?;
        if region.access & access == 0 {
            return Err(FI_EACCES);
        }
        if address.checked_add(length).is_none_or(|end| end > region.len as u64) {
            return Err(FI_EACCES);
        }
        Ok(region.base.wrapping_add(address as usize))
    }

    /// The place of a write's payload.
    pub(super) fn place_write(&self, header: &Header) -> Option<Segment> {
        let len = header.payload as usize;
        let base = self.region(header.tag, header.address, len as u64, FI_REMOTE_WRITE).ok()?;
        Some(Segment { base: base as *mut u8, len })
    }

    /// WRITE: a peer writes here.
    pub(super) fn written(&mut self, out: &mut impl Outlet, peer: Rank, header: &Header, payload: Payload) -> Result<(), Fault> {
        if header.payload as usize != payload.len() {
            return Err(Fault::Length);
        }
        let place = self.region(header.tag, header.address, payload.len() as u64, FI_REMOTE_WRITE);
        if let Ok(base) = place {
            Buffers::One(Segment { base: base as *mut u8, len: payload.len() }).fill(0, payload);
        }
        if place.is_ok() && !header.has(flag::LAST) {
            return Ok(());
        }
        if place.is_ok() && header.has(flag::DATA) {
            let flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA;
            let completion = Completion { flags, len: header.length, data: header.data, ..Completion::default() };
            self.tell(header.to, Class::Receive, true, completion);
        }
        self.grant(out, peer, header);
        let mut answer = Header::new(Kind::Ack);
        answer.from = header.to;
        answer.to = header.from;
        answer.id = header.id;
        answer.aux = place.err().unwrap_or(0) as u32;
        out.post(peer, &answer, &[]);
        Ok(())
    }

    /// READ: a peer reads here.
    pub(super) fn asked(&mut self, out: &mut impl Outlet, peer: Rank, header: &Header) -> Result<(), Fault> {
        let mut answer = Header::new(Kind::Data);
        answer.from = header.to;
        answer.to = header.from;
        answer.id = header.id;
        self.grant(out, peer, header);
        match self.region(header.tag, header.address, header.length, FI_REMOTE_READ) {
            Ok(base) if header.length > 0 => {
                let length = header.length as usize;
                let buffers = Buffers::One(Segment { base: base as *mut u8, len: length });
                out.stream(peer, Stream { header: answer, buffers, base: 0, offset: 0, length, operation: 0, region: Some(header.tag) });
            }
            outcome => {
                answer.kind = Kind::Ack as u8;
                answer.aux = outcome.err().unwrap_or(0) as u32;
                out.post(peer, &answer, &[]);
            }
        }
        Ok(())
    }

    /// DATA of a read.
    pub(super) fn read_landed(&mut self, peer: Rank, header: &Header, payload: Payload) -> Result<(), Fault> {
        let Some(Operation::Read(reading)) = self.operations.get_mut(header.id) else { return Ok(()) };
        if reading.transfer.peer != peer {
            return Ok(());
        }
        let offset = usize::try_from(header.address).map_err(|_| Fault::Excess)?;
        if offset.checked_add(payload.len()).is_none_or(|end| end > reading.length) {
            return Err(Fault::Excess);
        }
        reading.buffers.fill(offset, payload);
        reading.received += payload.len();
        if reading.received >= reading.length {
            self.finish_read(header.id, 0);
        }
        Ok(())
    }

    pub(super) fn finish_read(&mut self, id: u64, error: i32) {
        if let Some(Operation::Read(reading)) = self.operations.remove(id) {
            self.waited(reading.transfer.peer);
            let completion = Completion { context: reading.transfer.context, flags: FI_RMA | FI_READ, error, ..Completion::default() };
            self.finish(reading.transfer.endpoint, Class::Read, reading.transfer.report, completion);
        }
    }

    pub(super) fn finish_write(&mut self, out: &mut impl Outlet, id: u64, error: i32) {
        if let Some(Operation::Write(transfer)) = self.operations.remove(id) {
            self.waited(transfer.peer);
            if transfer.streaming {
                // The rest of a refused write need not travel, and its buffer is the application's again; so it is if the
                // target lies about having it all.
                out.withdraw(&|stream| stream.operation == id);
            }
            let completion = Completion { context: transfer.context, flags: FI_RMA | FI_WRITE, error, ..Completion::default() };
            self.finish(transfer.endpoint, Class::Write, transfer.report, completion);
        }
    }
}

/// The header of what goes by packets: `length` bytes that are left.
fn prepare(out: &mut impl Outlet, kind: Kind, endpoint: u16, transfer: &Transfer<'_>, length: usize) -> Result<Header, i32> {
    if !out.has_room(transfer.to.0) {
        return Err(FI_EAGAIN);
    }
    let mut header = Header::new(kind);
    header.from = endpoint;
    header.to = transfer.to.1;
    header.tag = transfer.key;
    header.address = transfer.address.checked_add(transfer.done as u64).ok_or(FI_EINVAL)?;
    header.length = length as u64;
    if out.ask(transfer.to.0, transfer.key) {
        header.flags |= flag::ASKS;
    }
    Ok(header)
}
