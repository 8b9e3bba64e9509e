//! Remote memory access by packets: the target's processor copies.

use super::buffers::{Buffers, MAX_SEGMENTS, Payload, Segment};
use super::completion::Completion;
use super::packet::{Header, Kind, flag};
use super::send::EAGER_LIMIT;
use super::{Class, Engine, Fault, Operation, Outlet, Stream};
use mend_fabric_sys::{
    FI_EACCES, FI_EAGAIN, FI_EINVAL, FI_EMSGSIZE, FI_ENOKEY, FI_READ, FI_REMOTE_CQ_DATA, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA, FI_WRITE,
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

fn buffers(segments: &[Segment]) -> Buffers {
    match segments {
        [one] => Buffers::One(*one),
        many => Buffers::Many(many.into()),
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

    /// Ends the exposure: reads under way are refused, nothing touches the memory after this returns.
    pub fn unregister(&mut self, out: &mut impl Outlet, key: u64) {
        self.regions.remove(&key);
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
    pub fn write(&mut self, out: &mut impl Outlet, endpoint: u16, transfer: &Transfer<'_>) -> Result<(), i32> {
        let (mut header, length) = prepare(out, Kind::Write, endpoint, transfer)?;
        if transfer.inject && length > EAGER_LIMIT {
            return Err(FI_EMSGSIZE);
        }
        if let Some(data) = transfer.data {
            header.flags |= flag::DATA;
            header.data = data;
        }
        let report = !transfer.inject && self.reports(endpoint, Class::Write, transfer.flags);
        let streaming = length > EAGER_LIMIT;
        let waiting = Transfering { endpoint, peer: transfer.to.0, context: transfer.context, report, streaming };
        header.id = self.operations.insert(Operation::Write(waiting));
        if length <= EAGER_LIMIT {
            header.payload = length as u32;
            header.flags |= flag::LAST;
            out.post(transfer.to.0, &header, transfer.segments);
        } else {
            let (operation, base) = (header.id, transfer.address);
            let buffers = buffers(transfer.segments);
            out.stream(transfer.to.0, Stream { header, buffers, base, offset: 0, length, operation, region: None });
        }
        Ok(())
    }

    /// Starts a read.
    ///
    /// # Errors
    /// `FI_EAGAIN`, `FI_EINVAL`.
    pub fn read(&mut self, out: &mut impl Outlet, endpoint: u16, transfer: &Transfer<'_>) -> Result<(), i32> {
        let (mut header, length) = prepare(out, Kind::Read, endpoint, transfer)?;
        let report = self.reports(endpoint, Class::Read, transfer.flags);
        if length == 0 {
            let completion = Completion { context: transfer.context, flags: FI_RMA | FI_READ, ..Completion::default() };
            self.finish(endpoint, Class::Read, report, completion);
            return Ok(());
        }
        let waiting = Transfering { endpoint, peer: transfer.to.0, context: transfer.context, report, streaming: false };
        let reading = Reading { transfer: waiting, buffers: buffers(transfer.segments), length, received: 0 };
        header.id = self.operations.insert(Operation::Read(reading));
        out.post(transfer.to.0, &header, &[]);
        Ok(())
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
            self.finish(header.to, Class::Receive, true, completion);
        }
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
            let completion = Completion { context: reading.transfer.context, flags: FI_RMA | FI_READ, error, ..Completion::default() };
            self.finish(reading.transfer.endpoint, Class::Read, reading.transfer.report, completion);
        }
    }

    pub(super) fn finish_write(&mut self, out: &mut impl Outlet, id: u64, error: i32) {
        if let Some(Operation::Write(transfer)) = self.operations.remove(id) {
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

fn prepare(out: &impl Outlet, kind: Kind, endpoint: u16, transfer: &Transfer<'_>) -> Result<(Header, usize), i32> {
    if !out.has_room(transfer.to.0) {
        return Err(FI_EAGAIN);
    }
    if transfer.segments.len() > MAX_SEGMENTS {
        return Err(FI_EINVAL);
    }
    let length: usize = transfer.segments.iter().map(|segment| segment.len).sum();
    let mut header = Header::new(kind);
    header.from = endpoint;
    header.to = transfer.to.1;
    header.tag = transfer.key;
    header.address = transfer.address;
    header.length = length as u64;
    Ok((header, length))
}
