//! A PMI-1 server: one line per command on each rank's socket (MPICH's `simple_pmi` wire protocol).

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};

#[derive(Default)]
struct Shared {
    keys: HashMap<String, String>,
    arrived: u32,
    round: u64,
}

pub struct Server {
    size: u32,
    shared: Mutex<Shared>,
    all: Condvar,
}

fn value<'a>(line: &'a str, key: &str) -> &'a str {
    line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('=')).unwrap_or("")
}

impl Server {
    pub fn new(size: u32) -> Self {
        let mut shared = Shared::default();
        // Every rank on a node of its own: the MPI library must not use shared memory of its own.
        shared.keys.insert("PMI_process_mapping".into(), format!("(vector,(0,{size},1))"));
        Self { size, shared: Mutex::new(shared), all: Condvar::new() }
    }

    pub fn serve(self: &Arc<Self>, rank: u32, socket: UnixStream) {
        let server = self.clone();
        std::thread::spawn(move || {
            let mut answers = socket.try_clone().expect("a socket");
            for line in BufReader::new(socket).lines().map_while(Result::ok) {
                let answer = server.answer(rank, &line);
                if answers.write_all(answer.as_bytes()).is_err() {
                    break;
                }
            }
        });
    }

    fn answer(&self, rank: u32, line: &str) -> String {
        match value(line, "cmd") {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n".into(),
            "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=256 vallen_max=1024\n".into(),
            "get_appnum" => "cmd=appnum appnum=0\n".into(),
            // MPICH names files in /dev/shm after it.
            "get_my_kvsname" => format!("cmd=my_kvsname kvsname=testbed_{}\n", std::process::id()),
            "get_universe_size" => format!("cmd=universe_size size={}\n", self.size),
            "put" => {
                self.shared.lock().expect("a lock").keys.insert(value(line, "key").into(), value(line, "value").into());
                "cmd=put_result rc=0 msg=success\n".into()
            }
            "get" => match self.shared.lock().expect("a lock").keys.get(value(line, "key")) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}\n"),
                None => "cmd=get_result rc=-1 msg=unknown_key value=unknown\n".into(),
            },
            "barrier_in" => {
                self.barrier();
                "cmd=barrier_out\n".into()
            }
            "finalize" => "cmd=finalize_ack\n".into(),
            "abort" => {
                eprintln!("testbed: rank {rank} aborts: {line}");
                std::process::exit(3);
            }
            other => {
                eprintln!("testbed: rank {rank}: unknown PMI command {other:?}");
                String::new()
            }
        }
    }

    fn barrier(&self) {
        let mut shared = self.shared.lock().expect("a lock");
        shared.arrived += 1;
        let round = shared.round;
        if shared.arrived == self.size {
            shared.arrived = 0;
            shared.round += 1;
            self.all.notify_all();
        }
        while shared.round == round {
            shared = self.all.wait(shared).expect("a lock");
        }
    }
}
