//! T5, T6: the guard at one end of a cable, and what is left when its process goes.

use forebay_common::kernel::LAYOUT_HASH;
use forebay_common::kernel::address;
use forebay_common::kernel::guard::{Settings, Target, Verdict};
use forebay_ebpf::guard::Mode;
use forebay_ebpf::{Guard, RunStats, Stage};
use forebay_kernel_tests::flood::Flood;
use forebay_kernel_tests::private::{self, command};
use forebay_kernel_tests::traffic::wait_for;
use forebay_kernel_tests::veth::{Cable, FAR_ADDRESSES, NEAR, NEAR_ADDRESS};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;

const PORT: u16 = 8000;

fn guarded(pin: Option<&Path>, settings: Settings) -> Guard {
    let mut guard = Guard::open(pin).expect("the guard loads");
    let target = Target { address: address::from_v4(NEAR_ADDRESS.octets()), port: PORT, pad: 0 };
    guard.set_targets(&[target]).expect("targets");
    guard.set(settings).expect("settings");
    guard
}

fn limit(syn_per_s: u32, syn_burst: u32) -> Settings {
    Settings { enforce: 1, syn_per_s, syn_burst, pad: 0 }
}

/// Bytes whose order and number both matter.
fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8)) as u8
}

/// Connects from one of the far end's addresses.
fn connect_from(source: std::net::Ipv4Addr) -> std::io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::new(IpAddr::V4(source), 0))?;
    connect(&socket, &SocketAddr::new(IpAddr::V4(NEAR_ADDRESS), PORT))?;
    Ok(TcpStream::from(socket))
}

/// Sends `bytes` from the far end and checks each at the near one, while `meanwhile` happens.
fn stream(cable: &Cable, bytes: usize, meanwhile: impl FnOnce()) {
    let listener = TcpListener::bind((NEAR_ADDRESS, PORT)).expect("listens");
    let sender = cable.far(move || {
        let mut stream = connect_from(FAR_ADDRESSES[1]).expect("connects");
        let mut sent = 0;
        while sent < bytes {
            let chunk: Vec<u8> = (sent..(sent + 65_536).min(bytes)).map(pattern).collect();
            stream.write_all(&chunk).expect("sends");
            sent += chunk.len();
        }
    });
    let (mut receiver, _) = listener.accept().expect("accepts");
    let reader = thread::spawn(move || {
        let (mut at, mut buffer) = (0, vec![0; 65_536]);
        loop {
            let read = receiver.read(&mut buffer).expect("reads");
            if read == 0 {
                return at;
            }
            for byte in &buffer[..read] {
                assert_eq!(*byte, pattern(at), "byte {at}");
                at += 1;
            }
        }
    });
    meanwhile();
    sender.join().expect("sent");
    assert_eq!(reader.join().expect("read"), bytes, "the stream lost nothing");
    drop(listener);
}

#[test]
fn streams_pass_the_guard_whole() {
    private::run("streams_pass_the_guard_whole", |_| {
        let _stats = RunStats::enable().expect("statistics");
        let cable = Cable::lay();
        let bytes = 64 << 20;
        stream(&cable, bytes, || {});
        let mut guard = guarded(None, limit(100, 10));
        let mode = guard.attach(NEAR).expect("attaches").expect("a fresh link");
        assert_eq!(mode, Mode::Native, "veth has native XDP");
        stream(&cable, bytes, || {});
        assert!(guard.runs().expect("counts").runs > 0, "the program ran");
        assert_eq!(guard.verdict(Verdict::Admitted).expect("counter"), 1, "one connection was opened");
        assert_eq!(guard.verdict(Verdict::Limited).expect("counter"), 0);
        let second = guarded(None, limit(1, 1)).attach(NEAR).expect_err("one program at a time");
        assert_eq!(second.stage, Stage::Attach);
        assert!(second.why.contains("another program"), "{second}");
        drop(guard);
        let mut anew = guarded(None, limit(1, 1));
        anew.attach(NEAR).expect("what was dropped is detached");
    });
}

#[test]
fn a_flood_from_one_source_is_cut_to_its_limit_and_a_stream_loses_nothing() {
    private::run("a_flood_from_one_source_is_cut_to_its_limit_and_a_stream_loses_nothing", |_| {
        let cable = Cable::lay();
        let flood = |cable: &Cable| {
            let flood = Flood { source: FAR_ADDRESSES[0], destination: NEAR_ADDRESS, port: PORT, syns: 20_000 };
            cable.far(move || flood.send()).join().expect("sent");
        };
        // Without the guard: every SYN reaches the stack. The stream lives through that too, so the guard must not be what harms it.
        stream(&cable, 16 << 20, || flood(&cable));
        let mut guard = guarded(None, limit(10, 20));
        guard.attach(NEAR).expect("attaches");
        stream(&cable, 16 << 20, || flood(&cable));
        let limited = guard.verdict(Verdict::Limited).expect("counter");
        let admitted = guard.verdict(Verdict::Admitted).expect("counter");
        assert_eq!(limited + admitted, 20_001, "the flood and the stream's own connection");
        // The burst, what a minute at most gives, and the stream.
        assert!(admitted <= 20 + 600 + 1, "{admitted} were admitted");
        let flooding = guard.sources().iter().map(|(_, syns)| *syns).max();
        assert_eq!(flooding, Some(20_000), "who floods can be named");
    });
}

/// A folder that goes with this test's mounts.
fn scratch() -> &'static Path {
    command("mount", &["-t", "tmpfs", "tmpfs", "/mnt"]);
    Path::new("/mnt")
}

/// A BPF file system of this test's own.
fn bpffs() -> std::path::PathBuf {
    let path = &scratch().join("bpf");
    std::fs::create_dir_all(path).expect("a folder");
    command("mount", &["-t", "bpf", "bpf", &path.display().to_string()]);
    path.join("guard")
}

#[test]
fn a_pinned_guard_outlives_its_process_and_is_taken_over() {
    private::run("a_pinned_guard_outlives_its_process_and_is_taken_over", |_| {
        let cable = Cable::lay();
        let pin = bpffs();
        let mut first = guarded(Some(&pin), limit(1, 1));
        assert!(first.attach(NEAR).expect("attaches").is_some());
        first.set_lists(&[], &[((96 + 32, address::from_v4(FAR_ADDRESSES[0].octets())), 3)]).expect("lists");
        drop(first);
        let listener = TcpListener::bind((NEAR_ADDRESS, PORT)).expect("listens");
        let flood = Flood { source: FAR_ADDRESSES[0], destination: NEAR_ADDRESS, port: PORT, syns: 5 };
        cable.far(move || flood.send()).join().expect("sent");
        let mut second = Guard::open(Some(&pin)).expect("adopts");
        wait_for("denied while no process was there", || match second.rule_hits(3).expect("counter") {
            5 => Ok(()),
            n => Err(n.to_string()),
        });
        assert_eq!(second.attach(NEAR).expect("takes over"), None, "the link stays, the program changes");
        cable.far(move || flood.send()).join().expect("sent");
        wait_for("denied by the new program, from the adopted list", || match second.rule_hits(3).expect("counter") {
            10 => Ok(()),
            n => Err(n.to_string()),
        });
        drop(second);
        Guard::remove(&pin).expect("removes");
        let mut third = guarded(None, limit(1, 1));
        third.attach(NEAR).expect("nothing is there any more");
        drop(listener);
    });
}

#[test]
fn pins_of_another_layout_are_refused_in_words() {
    private::run("pins_of_another_layout_are_refused_in_words", |_| {
        let pin = bpffs();
        drop(guarded(Some(&pin), limit(1, 1)));
        forebay_ebpf::guard::mark_layout(&pin, LAYOUT_HASH + 1).expect("another layout");
        let refused = Guard::open(Some(&pin)).err().expect("refused");
        assert_eq!(refused.stage, Stage::Pin);
        assert!(refused.why.contains("layout") && refused.why.contains("--remove"), "{refused}");
        forebay_ebpf::guard::mark_layout(&pin, LAYOUT_HASH).expect("ours again");
        drop(Guard::open(Some(&pin)).expect("adopts"));
    });
}

#[test]
fn without_a_bpf_file_system_the_error_says_what_to_mount() {
    private::run("without_a_bpf_file_system_the_error_says_what_to_mount", |_| {
        let refused = Guard::open(Some(&scratch().join("plain"))).err().expect("refused");
        assert!(refused.to_string().contains("mount -t bpf"), "{refused}");
    });
}
