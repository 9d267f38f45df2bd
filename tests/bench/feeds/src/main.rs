//! Reads KV events through two ZMQ libraries under one load and prints what each costs.
//!
//! ```text
//! feeds-bench publish FEEDS RATE SECONDS        prints its endpoint; one PUB, every subscriber gets every batch
//! feeds-bench read HOW ENDPOINT FEEDS SECONDS   HOW: libzmq-epoll (as the gateway does), libzmq-poll (zmq_poll), zeromq
//! feeds-bench hostile HOW                       a peer that announces a frame of 64 TiB
//! feeds-bench compare [SECONDS]                 the whole table, both sides in processes of their own
//! ```
//!
//! FEEDS is the number of open sockets, RATE the batches a second that all of them get together.

mod publish;
mod read;
mod usage;

use std::io::BufRead;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

/// Open feeds of each row; the last is what 20,000 files allow, with three for each feed.
const FEEDS: [usize; 4] = [1, 100, 1_000, 6_000];

/// Batches a second that all feeds of a row get together.
const RATE: u64 = 50_000;

/// What reads.
pub const READERS: [&str; 3] = ["libzmq-epoll", "libzmq-poll", "zeromq"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text} is no number"));
    match words[..] {
        ["publish", feeds, rate, seconds] => {
            publish::publish(number(feeds) as usize, number(rate), Duration::from_secs(number(seconds)));
        }
        ["read", how, endpoint, feeds, seconds] => {
            read::read(how, endpoint, number(feeds) as usize, Duration::from_secs(number(seconds)));
        }
        ["hostile", how] => publish::be_hostile(how),
        ["compare"] => compare(10),
        ["compare", seconds] => compare(number(seconds)),
        _ => {
            eprintln!("see the top of src/main.rs");
            return ExitCode::from(64);
        }
    }
    ExitCode::SUCCESS
}

/// Every reader at every size, then at full speed, then against a hostile peer.
fn compare(seconds: u64) {
    println!(
        "| Reader | Feeds | Offered batches/s | Read batches/s | CPU µs/batch | Lag p50 µs | Lag p99 µs | RSS MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for feeds in FEEDS {
        for how in READERS {
            row(how, feeds, RATE, seconds);
        }
    }
    for how in READERS {
        row(how, 64, u64::from(u32::MAX), seconds);
    }
    for how in ["libzmq-epoll", "zeromq"] {
        let own = std::env::current_exe().expect("this program");
        let status = Command::new(own).args(["hostile", how]).status().expect("starts");
        println!("a frame announced with 64 TiB: {how} {status}");
    }
}

fn row(how: &str, feeds: usize, rate: u64, seconds: u64) {
    let own = std::env::current_exe().expect("this program");
    // The reader needs time to connect; the publisher waits for its subscriptions and then lasts longer than is measured.
    let arguments = ["publish".to_owned(), feeds.to_string(), rate.to_string(), (seconds + 5).to_string()];
    let mut publisher = Command::new(&own).args(arguments).stdout(Stdio::piped()).spawn().expect("starts");
    let mut endpoint = String::new();
    let output = publisher.stdout.take().expect("piped");
    std::io::BufReader::new(output).read_line(&mut endpoint).expect("says where");
    let arguments = ["read", how, endpoint.trim(), &feeds.to_string(), &seconds.to_string()].map(str::to_owned);
    let read = Command::new(&own).args(arguments).output().expect("starts");
    let offered = if rate > 1_000_000_000 { "all it can".to_owned() } else { rate.to_string() };
    match read.status.success() {
        true => println!("| {how} | {feeds} | {offered} | {} |", String::from_utf8_lossy(&read.stdout).trim()),
        false => println!("| {how} | {feeds} | {offered} | failed: {} |", String::from_utf8_lossy(&read.stderr).trim()),
    }
    publisher.kill().expect("runs");
    publisher.wait().expect("ends");
}
