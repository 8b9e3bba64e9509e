//! Saves and copies of ranks that go to another node.

use super::AgentLinks;
use super::ready::{NotReady, Prepared, Ready};
use mend_messages::agent::{Compression, Reply, Request, SaveOrder, SaveTarget};
use mend_messages::chunks::Transport;
use mend_messages::daemon::{FromDaemon, Way};
use mend_messages::job::Rank;
use mend_report::with_causes;
use mend_transfer::peer::{self, MovingRank, Token};
use mend_transfer::{TransferError, chunks};
use std::net::SocketAddr;

impl AgentLinks {
    /// Opens the transfer that a save goes into.
    pub(super) fn opened(
        &self,
        rank: Rank,
        (address, token): (SocketAddr, Token),
        way: Way,
    ) -> impl Future<Output = Prepared> + Send + use<> {
        let (job, patience, sinks, moving) = (self.job.clone(), self.patience, self.sinks.clone(), self.moving_rank(rank));
        async move {
            let encrypts = job.encrypt_data || sinks.encrypts();
            if encrypts && way != Way::Direct {
                return Err(NotReady::InTheClear);
            }
            let opened = || peer::open(address, &job, token, patience);
            let (file, sink) = match &way {
                Way::Direct => (peer::open_stream(address, &job, token, moving, patience, sinks.progress()).await?, None),
                Way::Staged => (opened().await?.into_descriptor(sinks.progress()).map_err(TransferError::Socket)?, None),
                Way::Local => sinks.stored(opened().await?, None).await.map_err(NotReady::Sink)?,
                Way::Shared(path) => sinks.stored(opened().await?, Some(path.clone())).await.map_err(NotReady::Sink)?,
            };
            // What a file has on the way is as it would be in one that is kept.
            let compression = if matches!(way, Way::Direct | Way::Staged) { job.compression } else { Compression::Off };
            let order = SaveOrder { compression, ..SaveOrder::full(SaveTarget::Descriptor) };
            Ok(Ready { request: Request::Save(order), file: Some(file), sink })
        }
    }

    /// The same for a copy of a rank that runs on. Its input goes on, too.
    pub(super) fn opened_for_copy(&self, rank: Rank, address: SocketAddr, token: Token) -> impl Future<Output = Prepared> + Send + use<> {
        let (job, patience, progress, moving) = (self.job.clone(), self.patience, self.sinks.progress(), self.moving_rank(rank));
        async move {
            let file = peer::open_stream(address, &job, token, moving, patience, progress).await?;
            // Through threads that encrypt, and in chunks, there is one way only.
            let answered = !job.encrypt_data && job.transport == Transport::Tcp;
            Ok(Ready { request: Request::Precopy { answered, compression: job.compression }, file: Some(file), sink: None })
        }
    }

    fn moving_rank(&self, rank: Rank) -> MovingRank {
        MovingRank { rank, source: self.ip, library: self.libraries.get(&rank).cloned() }
    }

    /// An agent's answer, for the controller. Of a rank that is about to move in chunks: once they can be used here, or that they cannot.
    pub fn pass_back(&mut self, seq: u64, rank: Rank, reply: Reply) {
        match &reply {
            // The files are asked for when a move is to follow.
            Reply::Inspected(found) if self.job.transport != Transport::Tcp && !found.needs.files.is_empty() => {
                let library = chunks::library_of(&found.needs);
                if let Some(library) = &library {
                    self.libraries.insert(rank, library.clone());
                }
                let (urgent, job, here) = (self.urgent.clone(), self.job.clone(), self.ip);
                tokio::spawn(async move {
                    let reply = match chunks::of_job(&job, here, library.as_deref()).await {
                        Ok(_) => reply,
                        Err(error) => Reply::Failed { error: with_causes(&error), hint: error.hint().into() },
                    };
                    urgent.send(FromDaemon::Agent { seq, rank, reply });
                });
            }
            _ => self.urgent.send(FromDaemon::Agent { seq, rank, reply }),
        }
    }
}
