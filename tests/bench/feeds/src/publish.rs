//! The publishing side: one PUB socket whose batches go to every subscriber, and a peer with bad intentions.

use crate::usage::now_ns;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

/// Paced in steps of so long: shorter ones would measure the timer.
const STEP: Duration = Duration::from_millis(2);

/// A batch as vLLM publishes it for one block of 16 tokens; the time is put in front of the topic's place.
fn payload() -> Vec<u8> {
    let tokens: Vec<u32> = (1_000..1_016).collect();
    let event = ("BlockStored", vec![u64::MAX - 1], Some(u64::MAX - 2), tokens, 16, None::<u32>, "GPU");
    rmp_serde::to_vec(&(1.5_f64, vec![event], 0)).expect("encodes")
}

/// Prints the endpoint, waits for `feeds` subscribers, then publishes until `lasts` is over.
pub fn publish(feeds: usize, rate: u64, lasts: Duration) {
    let context = zmq::Context::new();
    let socket = context.socket(zmq::XPUB).expect("socket");
    socket.set_linger(0).expect("option");
    // What cannot be sent is dropped, as vLLM's publisher does.
    socket.set_sndhwm(100_000).expect("option");
    socket.set_backlog(4_096).expect("option");
    // Every subscription is told, also one that repeats another's.
    socket.set_xpub_verbose(true).expect("option");
    socket.bind("tcp://127.0.0.1:*").expect("binds");
    println!("{}", socket.get_last_endpoint().expect("bound").expect("text"));
    std::io::stdout().flush().expect("read by the parent");
    for _ in 0..feeds {
        socket.recv_bytes(0).expect("a subscription");
    }
    let payload = payload();
    let end_ns = now_ns() + lasts.as_nanos() as u64;
    let (begun_ns, mut sent) = (now_ns(), 0_u64);
    let per_second = (rate as f64 / feeds as f64).max(1.0);
    while now_ns() < end_ns {
        let due = ((now_ns() - begun_ns) as f64 / 1e9 * per_second) as u64;
        for _ in sent..due.min(sent + 10_000) {
            let frames: [&[u8]; 3] = [&now_ns().to_be_bytes(), &sent.to_be_bytes(), &payload];
            socket.send_multipart(frames, 0).expect("sent");
            sent += 1;
        }
        if due <= sent {
            std::thread::sleep(STEP);
        }
    }
}

/// Accepts one reader, shakes hands as ZMTP 3.0 says, and announces a message of 64 TiB. Exits well when the reader ends
/// the connection and goes on living.
pub fn be_hostile(how: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let endpoint = format!("tcp://{}", listener.local_addr().expect("bound"));
    let reader = {
        let (how, endpoint) = (how.to_owned(), endpoint);
        std::thread::spawn(move || crate::read::try_once(&how, &endpoint))
    };
    let (mut peer, _) = listener.accept().expect("the reader");
    let mut greeting = [0_u8; 64];
    (greeting[0], greeting[8], greeting[9], greeting[10]) = (0xff, 1, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    peer.write_all(&greeting).expect("sent");
    peer.read_exact(&mut greeting).expect("its greeting");
    let ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB";
    let mut ready = ready.to_vec();
    ready[1] = (ready.len() - 2) as u8;
    peer.write_all(&ready).expect("sent");
    std::thread::sleep(Duration::from_millis(200));
    let mut frame = vec![0x02];
    frame.extend((64_u64 << 40).to_be_bytes());
    // A reader that is gone already is what is hoped for.
    let _ = peer.write_all(&frame);
    let _ = peer.write_all(&[0; 1_024]);
    reader.join().expect("the reader lives");
}
