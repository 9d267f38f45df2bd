//! What the kernel programs cost: ns for one run of each, by the kernel's own statistics.
//!
//! `--why` only says whether the kernel suites can run here. The times are of this machine under whatever else it does; nothing passes
//! or fails by them.
#![expect(clippy::print_stdout, reason = "a bench prints its results")]

use forebay_common::kernel::account::WatchKey;
use forebay_common::kernel::address;
use forebay_common::kernel::guard::{Settings, Target};
use forebay_ebpf::{Error, Guard, Load, ProgramRun, RunStats, netns_cookie};
use forebay_kernel_tests::packets::{ACK, SYN, segment_v4};
use forebay_kernel_tests::private::{Cgroup, Place, enter, entered, hindrance};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;

/// Connections for the programs at the cgroup.
const CONNECTIONS: u32 = 20_000;
/// Runs for each verdict of the guard.
const PACKETS: u32 = 1_000_000;
/// What the simulator has to tell.
const NOT_MEASURED: &str = "p99_metrics_x=na p99_kernel_x=na single_gateway_x=na";

fn main() -> ExitCode {
    if let Some(place) = entered() {
        return match measure(&place) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let why = hindrance();
    if std::env::args().any(|argument| argument == "--why") {
        match why {
            None => println!("kernel suites: run here, each test in a cgroup and network namespace of its own"),
            Some(why) => println!("kernel suites: SKIPPED: {why}"),
        }
        return ExitCode::SUCCESS;
    }
    if let Some(why) = why {
        println!("cannot run here: {why}");
        println!("RESULT conn_load_ns=na xdp_pass_ns=na xdp_drop_ns=na {NOT_MEASURED}");
        return ExitCode::from(2);
    }
    if enter(&Cgroup::make(), &[]).success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn measure(place: &Place) -> Result<(), Error> {
    let stats = RunStats::enable()?;
    let (conn_load, _) = connections(place, false)?;
    let (with_busy, busy) = connections(place, true)?;
    drop(stats);
    let mut guard = Guard::open(None)?;
    let here = [10, 0, 0, 1];
    guard.set_targets(&[Target { address: address::from_v4(here), port: 8000, pad: 0 }])?;
    guard.set(Settings { enforce: 1, syn_per_s: 1_000, syn_burst: 1_000, pad: 0 })?;
    let deny: Vec<_> = (0..1_000_u32)
        .map(|n| ((96 + 24, address::from_v4([172, 16 + (n / 256) as u8, (n % 256) as u8, 0])), n))
        .chain([((96 + 32, address::from_v4([192, 0, 2, 9])), 0)])
        .collect();
    guard.set_lists(&[], &deny)?;
    let mut run = |source: [u8; 4], flags| guard.run(&segment_v4(source, here, 8000, flags), PACKETS);
    let pass = run([192, 0, 2, 1], ACK)?.per_run.as_nanos();
    let judged = run([192, 0, 2, 1], SYN)?.per_run.as_nanos();
    let drop = run([192, 0, 2, 9], SYN)?.per_run.as_nanos();
    println!("program        ns a run   how");
    println!("conn_load      {:>8}   {CONNECTIONS} connections, {} runs", mean(conn_load), conn_load.runs);
    println!("conn_load      {:>8}   the same with busy beside it", mean(with_busy));
    println!("busy           {:>8}   {} packets of those connections", mean(busy), busy.runs);
    println!("xdp_guard      {pass:>8}   a data segment: not judged, passes");
    println!("xdp_guard      {judged:>8}   a SYN of a source beyond its limit, dropped");
    println!("xdp_guard      {drop:>8}   a SYN of a source on a deny list of 1,001 networks, dropped");
    println!("RESULT conn_load_ns={} xdp_pass_ns={pass} xdp_drop_ns={drop} {NOT_MEASURED}", mean(conn_load));
    Ok(())
}

fn mean(run: ProgramRun) -> u128 {
    run.time.as_nanos() / u128::from(run.runs.max(1))
}

/// Short exchanges with a watched listener; runs of `conn_load` and of `busy`.
fn connections(place: &Place, busy: bool) -> Result<(ProgramRun, ProgramRun), Error> {
    let mut load = Load::attach(&place.cgroup, busy)?;
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let at = listener.local_addr().expect("bound");
    let key = WatchKey {
        netns_cookie: netns_cookie()?,
        address: address::from_v4([127, 0, 0, 1]),
        port: at.port(),
        pad: [0; 6],
    };
    load.watch(key, 0)?;
    let server = std::thread::spawn(move || {
        for _ in 0..CONNECTIONS {
            let (mut stream, _) = listener.accept().expect("accepts");
            let mut request = [0; 64];
            let _ = stream.read(&mut request).and_then(|_| stream.write_all(&[0; 1_000]));
        }
    });
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(at).expect("connects");
        stream.write_all(&[0; 64]).expect("sends");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("is answered");
    }
    server.join().expect("served all");
    let runs = load.runs()?;
    assert!(runs.0.runs >= u64::from(CONNECTIONS), "the program ran");
    Ok(runs)
}
