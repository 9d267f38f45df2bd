//! T4: real sockets. After every way that a connection can begin and end, the counters and the kernel's own list of
//! sockets say the same.

use forebay_common::kernel::account::{Counter, WatchKey};
use forebay_ebpf::load::SLOT_REST_MS;
use forebay_ebpf::{Load, RunStats};
use forebay_kernel_tests::private::{self, Place, command};
use forebay_kernel_tests::traffic::{Watched, connections, exchange, reset, wait_for};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;

const HERE: &str = "127.0.0.1:0";

/// No remains of connections: a thousand schedules would leave thousands.
fn without_remains() {
    std::fs::write("/proc/sys/net/ipv4/tcp_max_tw_buckets", "0").expect("a sysctl of this namespace");
}

#[test]
fn every_end_of_a_connection_is_counted_once() {
    private::run("every_end_of_a_connection_is_counted_once", |place| {
        let _stats = RunStats::enable().expect("statistics");
        let watched = Watched::start(&place.cgroup, HERE, false);
        let mut ended = 0;
        let mut check = |name: &str, end: &dyn Fn(TcpStream, TcpStream)| {
            let (client, server) = watched.connect();
            watched.agree_on(1, &format!("before {name}"));
            end(client, server);
            ended += 1;
            watched.agree_on(0, &format!("after {name}"));
            let record = watched.record();
            assert_eq!((record.opened, record.closed), (ended, ended), "{name}");
        };
        check("the client closes", &|client, mut server| {
            drop(client);
            assert_eq!(server.read(&mut [0]).expect("an end"), 0);
        });
        check("the server closes", &|mut client, server| {
            drop(server);
            assert_eq!(client.read(&mut [0]).expect("an end"), 0);
        });
        check("the client resets", &|client, mut server| {
            reset(client);
            server.read(&mut [0]).expect_err("a reset");
        });
        check("the server resets", &|mut client, server| {
            reset(server);
            client.read(&mut [0]).expect_err("a reset");
        });
        check("the client half-closes and the server answers", &|mut client, mut server| {
            client.shutdown(Shutdown::Write).expect("half a close");
            assert_eq!(server.read(&mut [0]).expect("an end"), 0);
            watched.agree_on(1, "while the server still answers");
            exchange(&mut server, &mut client, b"still here");
            drop(server);
            assert_eq!(client.read(&mut [0]).expect("an end"), 0);
        });
        check("the server half-closes", &|mut client, server| {
            server.shutdown(Shutdown::Write).expect("half a close");
            assert_eq!(client.read(&mut [0]).expect("an end"), 0);
            watched.agree_on(1, "while the client may still send");
        });
        check("it ends with bytes that nobody read", &|mut client, server| {
            client.write_all(b"unread").expect("sends");
            drop((server, client));
        });
        let (conn_load, _) = watched.load.runs().expect("counts");
        assert!(conn_load.runs >= 14, "the program ran: {conn_load:?}");
    });
}

#[test]
fn attempts_that_come_to_nothing_count_nothing() {
    private::run("attempts_that_come_to_nothing_count_nothing", |place| {
        let mut watched = Watched::start(&place.cgroup, HERE, false);
        let (client, server) = watched.connect();
        // Refused: nobody listens there.
        TcpStream::connect(("127.0.0.1", 1)).expect_err("refused");
        // Unanswered: the way back leads nowhere, so the handshake never ends.
        command("ip", &["route", "add", "blackhole", "10.99.0.0/16"]);
        TcpStream::connect(("10.99.0.1", watched.at.port())).expect_err("nowhere");
        watched.agree_on(1, "after attempts");
        // Established and never accepted: counted, and reset when the listener goes.
        let waiting = TcpStream::connect(watched.at).expect("connects");
        watched.agree_on(2, "with one that waits to be accepted");
        watched.listener = None;
        watched.agree_on(1, "after the listener went");
        TcpStream::connect(watched.at).expect_err("refused");
        drop((client, server, waiting));
        watched.agree_on(0, "at the end");
    });
}

#[test]
fn a_killed_peer_ends_its_connection() {
    private::run("a_killed_peer_ends_its_connection", |place| {
        let watched = Watched::start(&place.cgroup, HERE, false);
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{}; read -r -u 3 line", watched.at.port());
        let mut peer = Command::new("bash").args(["-c", &script]).spawn().expect("bash");
        let (mut server, _) = watched.listener.as_ref().expect("listens").accept().expect("accepts");
        watched.agree_on(1, "with a process at the other end");
        peer.kill().expect("kill -9");
        peer.wait().expect("ends");
        assert_eq!(server.read(&mut [0]).expect("an end"), 0);
        watched.agree_on(1, "while the server has not closed");
        drop(server);
        watched.agree_on(0, "after the server closed");
    });
}

#[test]
fn clients_of_both_families_of_a_dual_stack_listener_count_alike() {
    private::run("clients_of_both_families_of_a_dual_stack_listener_count_alike", |place| {
        let watched = Watched::start(&place.cgroup, "[::]:0", false);
        let (v4, v4_server) = watched.connect();
        let v6 = TcpStream::connect(("::1", watched.at.port())).expect("connects");
        watched.agree_on(2, "one of each family");
        drop((v4, v4_server));
        watched.agree_on(1, "after the first ended");
        drop(v6);
        drop(watched.listener.as_ref().expect("listens").accept());
        watched.agree_on(0, "after both ended");
    });
}

#[test]
fn a_reused_connection_counts_once_and_its_bytes_when_it_ends() {
    private::run("a_reused_connection_counts_once_and_its_bytes_when_it_ends", |place| {
        let watched = Watched::start(&place.cgroup, HERE, false);
        let (mut client, mut server) = watched.connect();
        for _ in 0..50 {
            exchange(&mut client, &mut server, b"a request");
            exchange(&mut server, &mut client, b"its answer is longer");
        }
        assert_eq!(watched.record().opened, 1);
        drop(client);
        assert_eq!(server.read(&mut [0]).expect("an end"), 0);
        drop(server);
        watched.agree_on(0, "at the end");
        let record = watched.record();
        // The kernel counts the end of a stream as one byte more.
        assert!((450..=451).contains(&record.bytes_in), "{record:?}");
        assert!((1_000..=1_001).contains(&record.bytes_out), "{record:?}");
        assert!(record.lifetime_ns > 0 && record.last_event_ns > 0);
    });
}

#[test]
fn other_namespaces_ports_and_earlier_connections_do_not_count() {
    private::run("other_namespaces_ports_and_earlier_connections_do_not_count", |place| {
        let listener = TcpListener::bind(HERE).expect("listens");
        let early = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        let mut watched = Watched::start(&place.cgroup, HERE, false);
        let port = listener.local_addr().expect("bound").port();
        let slot = watched.load.watch(WatchKey { port, ..watched.key }, 0).expect("watches").expect("room");
        let elsewhere = WatchKey { netns_cookie: watched.key.netns_cookie + 1, ..watched.key };
        let foreign = watched.load.watch(elsewhere, 0).expect("watches").expect("room");
        drop(early);
        drop(listener);
        wait_for("the early connection's end", || match connections(port) {
            0 => Ok(()),
            n => Err(n.to_string()),
        });
        let record = watched.load.record(slot).expect("reads").expect("there");
        assert_eq!((record.opened, record.closed), (0, 0), "what was there before has no storage");
        let (_client, _server) = watched.connect();
        watched.agree_on(1, "with one that counts");
        let record = watched.load.record(foreign).expect("reads").expect("there");
        assert_eq!(record.opened, 0, "the same address in another namespace is another worker");
    });
}

#[test]
fn a_worker_that_leaves_and_comes_back_begins_anew() {
    private::run("a_worker_that_leaves_and_comes_back_begins_anew", |place| {
        let mut watched = Watched::start(&place.cgroup, HERE, false);
        let old = watched.connect();
        watched.agree_on(1, "before it leaves");
        assert!(watched.load.unwatch(&watched.key, 0).expect("unwatches"));
        let unseen = watched.connect();
        assert_eq!(watched.record().opened, 1, "not watched, not counted");
        // At once: another position, and late ends go to the old one.
        let first = watched.slot;
        watched.slot = watched.load.watch(watched.key, 1).expect("watches").expect("room");
        assert_ne!(watched.slot.index, first.index);
        let new = watched.connect();
        wait_for("the new connection", || match watched.record().opened {
            1 => Ok(()),
            n => Err(n.to_string()),
        });
        drop(old);
        wait_for("the end of the old connection, in its own record", || {
            let record = watched.load.record(first).expect("reads").expect("there");
            if record.closed == 1 { Ok(()) } else { Err(format!("{record:?}")) }
        });
        assert_eq!(watched.record().closed, 0);
        // After its rest the position belongs to somebody else: ends of before change nothing and are counted as late.
        assert!(watched.load.unwatch(&watched.key, 2).expect("unwatches"));
        let mut reused = None;
        for port in 1..=2 {
            let key = WatchKey { port, ..watched.key };
            let slot = watched.load.watch(key, 3 + SLOT_REST_MS).expect("watches").expect("room");
            if slot.index == watched.slot.index {
                reused = Some(slot);
            }
        }
        let reused = reused.expect("one of the two has the position");
        drop(new);
        wait_for("a late end", || match watched.load.counter(Counter::Late).expect("counter") {
            1 => Ok(()),
            n => Err(n.to_string()),
        });
        let record = watched.load.record(reused).expect("reads").expect("there");
        assert_eq!((record.opened, record.closed), (0, 0));
        drop(unseen);
    });
}

#[test]
fn transfer_connections_count_for_their_peer_on_both_sides() {
    private::run("transfer_connections_count_for_their_peer_on_both_sides", |place| {
        let mut load = Load::attach(&place.cgroup, false).expect("attaches");
        let listener = TcpListener::bind(HERE).expect("listens");
        let at = listener.local_addr().expect("bound");
        load.watch_port(at.port()).expect("watches");
        let mut client = TcpStream::connect(at).expect("connects");
        let (mut server, _) = listener.accept().expect("accepts");
        exchange(&mut client, &mut server, &[7; 10_000]);
        drop((client, server));
        let peers = wait_for("both ends of the connection to end", || {
            let peers = load.peers();
            if peers.len() == 2 && peers.iter().all(|(_, r)| r.closed == 1) {
                Ok(peers)
            } else {
                Err(format!("{peers:?}"))
            }
        });
        let side = |dialled| peers.iter().find(|(key, _)| key.dialled == dialled).expect("that side").1;
        assert!(side(1).bytes_out >= 10_000 && side(0).bytes_in >= 10_000, "{peers:?}");
        assert!(
            peers.iter().all(|(key, r)| r.opened == 1 && r.srtt_samples >= 1 && key.port == at.port()),
            "{peers:?}"
        );
        assert_eq!(load.counter(Counter::PeersFull).expect("counter"), 0);
    });
}

#[test]
fn two_programs_at_one_cgroup_count_without_each_other() {
    private::run("two_programs_at_one_cgroup_count_without_each_other", |place| {
        let watched = Watched::start(&place.cgroup, HERE, false);
        let mut other = Load::attach(&place.cgroup, false).expect("attaches beside it");
        let slot = other.watch(watched.key, 0).expect("watches").expect("room");
        let pair = watched.connect();
        watched.agree_on(1, "with both");
        assert_eq!(other.record(slot).expect("reads").expect("there").opened, 1);
        drop(other);
        drop(pair);
        watched.agree_on(0, "after the other detached");
    });
}

#[test]
fn what_is_dropped_is_detached() {
    private::run("what_is_dropped_is_detached", |place| {
        let watched = Watched::start(&place.cgroup, HERE, false);
        let runs = |watched: &Watched| watched.load.counter(Counter::Runs).expect("counter");
        drop(watched.connect());
        watched.agree_on(0, "while attached");
        assert!(runs(&watched) > 0, "the program ran");
        let second = Watched::start(&place.cgroup, HERE, false);
        drop(watched);
        drop(second.connect());
        second.agree_on(0, "with what is left");
    });
}

#[test]
fn busy_follows_a_request_to_its_answer() {
    private::run("busy_follows_a_request_to_its_answer", |place| {
        let watched = Watched::start(&place.cgroup, HERE, true);
        let awaiting = |expected: u64, when: &str| {
            wait_for(when, || match watched.record() {
                record if record.awaiting() == expected => Ok(()),
                record => Err(format!("{record:?}")),
            });
        };
        let (mut client, mut server) = watched.connect();
        awaiting(0, "nothing was asked");
        exchange(&mut client, &mut server, b"POST /v1/chat/completions");
        awaiting(1, "a request is in");
        exchange(&mut client, &mut server, b"and the rest of its body");
        awaiting(1, "still one request");
        exchange(&mut server, &mut client, b"HTTP/1.1 200 OK");
        awaiting(1, "a head is no answer");
        exchange(&mut server, &mut client, b"data: {}");
        awaiting(0, "the answer got going");
        exchange(&mut client, &mut server, b"the next request");
        awaiting(1, "on the same connection");
        drop(client);
        drop(server);
        awaiting(0, "a connection that ends awaits nothing");
        let record = watched.record();
        assert_eq!((record.requests, record.answers, record.abandoned), (2, 1, 1));
        assert!(watched.load.counter(Counter::BusyRuns).expect("counter") > 0, "the program ran");
    });
}

/// One connection of a schedule.
enum Held {
    Both(TcpStream, TcpStream),
    Client(TcpStream),
    Server(TcpStream),
}

fn step(random: &mut fastrand::Rng, watched: &Watched, held: &mut Vec<Held>) {
    if held.is_empty() || (held.len() < 5 && random.u8(0..3) == 0) {
        let (client, server) = watched.connect();
        return held.push(Held::Both(client, server));
    }
    let at = random.usize(0..held.len());
    let one = held.swap_remove(at);
    match (one, random.u8(0..9)) {
        (Held::Both(client, server), 0) => {
            drop(client);
            held.push(Held::Server(server));
        }
        (Held::Both(client, server), 1) => {
            drop(server);
            held.push(Held::Client(client));
        }
        (Held::Both(client, server), 2) => {
            reset(client);
            held.push(Held::Server(server));
        }
        (Held::Both(client, server), 3) => {
            reset(server);
            held.push(Held::Client(client));
        }
        (Held::Both(client, server), 4) => {
            let _ = client.shutdown(Shutdown::Write);
            held.push(Held::Both(client, server));
        }
        (Held::Both(client, server), 5) => {
            let _ = server.shutdown(Shutdown::Write);
            held.push(Held::Both(client, server));
        }
        (Held::Both(mut client, server), 6) => {
            let _ = client.write_all(b"unread request");
            held.push(Held::Both(client, server));
        }
        (Held::Both(client, mut server), 7) => {
            let _ = server.write_all(b"unread answer");
            held.push(Held::Both(client, server));
        }
        (Held::Both(client, server), _) => drop((client, server)),
        (Held::Client(client), 0..4) => reset(client),
        (Held::Server(server), 0..4) => reset(server),
        (Held::Client(client), _) => drop(client),
        (Held::Server(server), _) => drop(server),
    }
}

#[test]
fn a_thousand_random_schedules_end_in_agreement() {
    private::run("a_thousand_random_schedules_end_in_agreement", thousand_schedules);
}

fn thousand_schedules(place: &Place) {
    without_remains();
    let watched = Watched::start(&place.cgroup, HERE, false);
    let mut connections_made = 0;
    for seed in 0..1_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut held = Vec::new();
        for _ in 0..random.usize(1..14) {
            step(&mut random, &watched, &mut held);
        }
        watched.agree(&format!("in schedule {seed}"));
        if random.bool() {
            held.clear();
            watched.agree_on(0, &format!("after schedule {seed}"));
        }
        for one in held.drain(..) {
            if let Held::Both(client, server) = one {
                reset(client);
                drop(server);
            }
        }
        let record = watched.record();
        assert!(record.opened > connections_made, "schedule {seed} opened something that was counted");
        connections_made = record.opened;
    }
    watched.agree_on(0, "after all schedules");
    assert_eq!(watched.load.counter(Counter::Late).expect("counter"), 0);
    assert_eq!(watched.load.counter(Counter::StorageFailed).expect("counter"), 0);
}
