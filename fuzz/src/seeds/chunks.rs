//! What is said of chunks of registered memory.

use super::{keep, seed};
use mend_messages::chunks::{ChunkMode, ChunkOrder, ChunkSetup, Opened, Word};
use mend_messages::frame;

#[test]
fn words_about_chunks_are_read() {
    let chunk = |offset| Word::Chunk { rank: 3, offset, length: 64, checksum: 5, address: 4096, key: 9 };
    let words = [
        Word::Hello { address: 4096, key: 7 },
        Word::Linked,
        chunk(0),
        Word::Granted { offset: 0, address: 8192, key: 8 },
        Word::Written { offset: 0 },
        Word::Arrived { offset: 0 },
        chunk(64),
        Word::End { offset: 128 },
    ];
    let said: Vec<u8> = words.iter().flat_map(|word| word.encode()).collect();
    let framed = |kind: u8, frame: Vec<u8>| [&[kind], &frame[4..]].concat();
    let order = |order: &ChunkOrder| framed(1, frame::encode(order).expect("a short message"));
    let answer = |answer: &Opened| framed(2, frame::encode(answer).expect("a short message"));
    let setup = ChunkSetup { provider: "verbs;ofi_rxm".into(), mode: ChunkMode::Read, chunk_bytes: 128 << 10, chunks: 64 };
    let address = vec![2, 0, 27, 205, 10, 0, 0, 1];
    let seeds = [
        seed("words", [&[0], said.as_slice()].concat()),
        seed("open", order(&ChunkOrder::Open { setup, library: Some("/opt/lib/libfabric.so.1".into()), source: [10, 0, 0, 1].into() })),
        seed("carry", order(&ChunkOrder::Carry { outgoing: true, rank: 3, address: address.clone(), patience_ms: 3000 })),
        seed("ready", answer(&Opened::Ready { address })),
        seed("refused", answer(&Opened::Refused { why: "no provider".into() })),
    ];
    keep("chunks", &seeds);
}
