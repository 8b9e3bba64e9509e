//! Puts a file that ranks write back as it was at a checkpoint, before any rank is restarted: the daemon does not see what ranks see.

use super::view::number_of_file;
use crate::client::{Client, Refused, Writer, find};
use mend_data::space::catalogue::Node;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Bytes that are written at once.
const PIECE: usize = 1 << 20;

/// Copies of a file tell the same time but for less than this, nanoseconds. Who was stopped for a checkpoint writes again later than that.
const SAME_TIME: u64 = 1_000_000;

/// How a file was.
#[derive(Clone, Copy, Debug)]
pub struct Was {
    /// Its bytes.
    pub size: u64,
    /// Its permissions.
    pub mode: u32,
    /// When it was changed, nanoseconds since 1970.
    pub changed_ns: i64,
    /// Its number in a mount, if that is known.
    pub number: Option<u64>,
}

/// What is put back of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it, which comes by standard input.
    Content,
    /// Its size: it was only appended to.
    Size,
    /// Nothing: it must be as it was.
    Nothing,
    /// The same, of a file that was open for reading alone: others may be writing it.
    Read,
}

/// Puts back a file of a space, or says `refused` and why on standard output. The exit code.
pub fn restore(name: &str, path: &str, part: Part, was: Was) -> i32 {
    let done = find(name).map_err(|(why, _)| why).and_then(|client| put(&client, path, part, was));
    match done {
        Ok(()) => 0,
        Err(why) => {
            let _ = writeln!(io::stdout(), "refused {}", why.replace('\n', " "));
            1
        }
    }
}

fn put(client: &Arc<Client>, path: &str, part: Part, was: Was) -> Result<(), String> {
    let writer = Writer::new(client.clone(), None);
    let told = |refused: Refused| refused.to_string();
    if part == Part::Content {
        let (entry, _) = writer.create(path, was.mode, false).map_err(told)?;
        if entry.written().is_none() {
            return Err(Refused::Staged.to_string());
        }
        writer.cut(&entry.id, 0).map_err(told)?;
        let (mut input, mut piece, mut at) = (io::stdin().lock(), Vec::new(), 0);
        loop {
            piece.clear();
            input.by_ref().take(PIECE as u64).read_to_end(&mut piece).map_err(|error| error.to_string())?;
            if piece.is_empty() {
                break;
            }
            if piece.iter().any(|byte| *byte != 0) {
                writer.write(&entry.id, at, &piece).map_err(told)?;
            }
            at += piece.len() as u64;
        }
        if at != was.size {
            return Err(format!("{at} bytes came instead of {}", was.size));
        }
        writer.cut(&entry.id, was.size).map_err(told)?;
        writer.set_mode(&entry.id, was.mode).map_err(told)?;
        writer.sync(&entry.id).map_err(told)?;
        writer.stamp(&entry.id, was.changed_ns).map_err(told)?;
        return writer.end_appending(&entry.id).map_err(told);
    }
    let found = match client.names().look(path) {
        Some(Node::File(entry)) => entry.clone(),
        _ => return Err("it is gone".to_owned()),
    };
    if found.written().is_none() {
        return Err(Refused::Staged.to_string());
    }
    let (size, changed_ns) = writer.shape(&found).map_err(|fault| fault.to_string())?;
    // The copy that told the time may be lost. Others that were written by several at once differ by nanoseconds.
    let is_alike = size == was.size && changed_ns.abs_diff(was.changed_ns) < SAME_TIME;
    match part {
        Part::Nothing | Part::Read if !is_alike => return Err("it was changed since".to_owned()),
        Part::Read => return Ok(()),
        // A node that was lost counts as appending for a while, and ranks are restarted elsewhere.
        Part::Nothing => return writer.end_appending(&found.id).map_err(told),
        Part::Content | Part::Size => {}
    }
    if was.number.is_some_and(|number| number != number_of_file(&found.id)) && !is_alike {
        return Err("it was replaced by another file since".to_owned());
    }
    if size < was.size {
        return Err(format!("it has {size} bytes, fewer than the {} at the checkpoint", was.size));
    }
    writer.cut(&found.id, was.size).map_err(told)?;
    writer.sync(&found.id).map_err(told)?;
    writer.end_appending(&found.id).map_err(told)
}
