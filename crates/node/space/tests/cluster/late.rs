//! What stands between clients and a target, and holds back what is said.

use crate::cluster::Cluster;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What passes on what is said to a target, and holds some of it back.
pub struct Late(Arc<Mutex<Vec<Arc<Held>>>>);

/// A connection through it.
#[derive(Default)]
struct Held {
    /// What the client says stays here.
    held: AtomicBool,
    /// The target has closed it.
    over: AtomicBool,
}

impl Late {
    /// Clients find it in the place of this target.
    pub fn before(cluster: &Cluster, at: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap().port();
        let there = cluster.ports.lock().unwrap().insert(cluster.space.targets[at].directory.clone(), here).unwrap();
        let all: Arc<Mutex<Vec<Arc<Held>>>> = Arc::default();
        let known = all.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, target) = (client.unwrap(), TcpStream::connect(("127.0.0.1", there)).unwrap());
                let state = Arc::new(Held::default());
                known.lock().unwrap().push(state.clone());
                let (answers, asks) = (target.try_clone().unwrap(), client.try_clone().unwrap());
                let over = state.clone();
                std::thread::spawn(move || {
                    pass(answers, client, || {});
                    over.over.store(true, Ordering::SeqCst);
                });
                std::thread::spawn(move || pass(asks, target, || state.wait()));
            }
        });
        Self(all)
    }

    /// What is said from now on over connections that there are is held back, and what they end with.
    pub fn hold(&self) {
        self.0.lock().unwrap().iter().for_each(|state| state.held.store(true, Ordering::SeqCst));
    }

    /// It goes on, and the target has ended these connections when this returns.
    pub fn release(&self) {
        let held: Vec<Arc<Held>> = self.0.lock().unwrap().iter().filter(|state| state.held.load(Ordering::SeqCst)).cloned().collect();
        assert!(!held.is_empty());
        for state in held {
            state.held.store(false, Ordering::SeqCst);
            while !state.over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Held {
    fn wait(&self) {
        while self.held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Passes on what comes, and its end.
fn pass(mut from: TcpStream, mut to: TcpStream, wait: impl Fn()) {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut bytes).unwrap_or(0);
        wait();
        if length == 0 || to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
