//! See the library. Standard input is a socket of packets to `mendd`: its orders come there, with descriptors, and the first is answered there. When it
//! ends, so does this process, whatever is under way.

use mend_chunks::Store;
use mend_chunks::carrier::{Carrier, NewStream};
use mend_fabric_sys::core_provider::{ChunkPool, PoolAccess};
use mend_messages::chunks::{ChunkMode, ChunkOrder, LONGEST_ADDRESS, LONGEST_ORDER, Opened};
use mend_messages::frame;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

/// Descriptors that come with an order.
const DESCRIPTORS: usize = 3;

/// An order, and what came with it.
type Given = (ChunkOrder, Vec<OwnedFd>);

fn main() -> ExitCode {
    let input = io::stdin();
    match run(input.as_fd()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            mend_report::tell!("mend-chunks: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(control: BorrowedFd<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let Some((order, _)) = receive(control)? else { return Ok(()) };
    let ChunkOrder::Open { setup, library, source } = order else { return Err("it is started by mendd, and has no use by itself".into()) };
    if !setup.is_sound() {
        return Err("chunks of such a size cannot be".into());
    }
    let access = match setup.mode {
        ChunkMode::Read => PoolAccess::Read,
        ChunkMode::Write => PoolAccess::Write,
    };
    let provider = (setup.provider.as_str(), source);
    let opened = ChunkPool::open(library.as_deref(), provider, access, (setup.chunks as usize, setup.chunk_bytes as usize), &random);
    let mut carrier = match opened {
        Ok(pool) if pool.address().len() <= LONGEST_ADDRESS => Carrier::new(Store::new(pool, random), setup.mode),
        Ok(_) => return answer(control, &Opened::Refused { why: "the provider's addresses are too long".into() }),
        Err(error) => return answer(control, &Opened::Refused { why: error.to_string() }),
    };
    answer(control, &Opened::Ready { address: carrier.address().to_vec() })?;
    loop {
        let busy = carrier.step()?;
        if !carrier.wait(control, busy)? {
            continue;
        }
        let Some((order, descriptors)) = receive(control)? else { return Ok(()) };
        let (ChunkOrder::Carry { outgoing, rank, address, patience_ms }, Ok([stream, connection, report])) =
            (order, <[OwnedFd; DESCRIPTORS]>::try_from(descriptors))
        else {
            return Err("an order makes no sense".into());
        };
        let patience = Duration::from_millis(patience_ms);
        carrier.take(NewStream { outgoing, rank, patience, address, stream, connection, report })?;
    }
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // It never fails for so few bytes once the kernel has begun to give any.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

fn answer(control: BorrowedFd<'_>, opened: &Opened) -> Result<(), Box<dyn std::error::Error>> {
    send(control, &frame::encode(opened)?, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next order. `None`: there will be none.
fn receive(control: BorrowedFd<'_>) -> Result<Option<Given>, Box<dyn std::error::Error>> {
    let mut bytes = vec![0; LONGEST_ORDER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let read = recvmsg(control, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors = descriptors.flatten().collect();
    if read == 0 {
        return Ok(None);
    }
    let body = bytes.get(4..read).ok_or("an order is cut")?;
    Ok(Some((frame::decode(body)?, descriptors)))
}
