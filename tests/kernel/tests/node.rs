//! T4, T6: the role `load` over real sockets and programs: what its records say, on each rung of the ladder, and what is left
//! when its process is killed.

use forebay_agent::config;
use forebay_agent::load::node::Node;
use forebay_common::wire::{self, Hello, Kind, Load, Welcome, WorkerLoad};
use forebay_kernel_tests::private::{self, Place};
use forebay_kernel_tests::traffic::{exchange, wait_for};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn config(place: &Place, at: SocketAddr, directory: &Path) -> config::Load {
    config::Load {
        workers: vec![at],
        cgroup: Some(place.cgroup.clone()),
        state_dir: directory.to_owned(),
        sysfs: directory.join("no-sysfs"),
        ..config::Load::default()
    }
}

/// A node and the time that passes for it.
struct Timed {
    node: Node,
    now_ms: u64,
}

impl Timed {
    fn start(config: &config::Load) -> Self {
        Self { node: Node::start(config, 0), now_ms: 0 }
    }

    /// The one worker's record once `holds`, with `step_ms` passing between two records.
    fn until(&mut self, what: &str, step_ms: u64, holds: impl Fn(&WorkerLoad) -> bool) -> WorkerLoad {
        wait_for(what, || {
            self.now_ms += step_ms;
            let record = self.node.sample(self.now_ms);
            match record.workers.first() {
                Some(worker) if holds(worker) => Ok(worker.clone()),
                other => Err(format!("{other:?}")),
            }
        })
    }
}

#[test]
fn connections_of_before_and_after_are_counted_and_work_is_told_from_idleness() {
    private::run("connections_of_before_and_after_are_counted_and_work_is_told_from_idleness", |place| {
        let directory = tempfile::tempdir().expect("a folder");
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let at = listener.local_addr().expect("bound");
        let early: Vec<_> =
            (0..2).map(|_| (TcpStream::connect(at).expect("connects"), listener.accept().expect("accepts"))).collect();
        let mut timed = Timed::start(&config(place, at, directory.path()));
        assert_eq!(timed.node.level(), 2, "{:?}", timed.node.signals());
        timed.until("two of before", 600, |worker| worker.open == Some(2) && worker.opened == Some(0));
        let mut client = TcpStream::connect(at).expect("connects");
        let (mut server, _) = listener.accept().expect("accepts");
        let worker = timed.until("three", 600, |worker| worker.open == Some(3));
        assert_eq!((worker.opened, worker.closed), (Some(1), Some(0)));
        assert_eq!((worker.awaiting, worker.streaming), (Some(0), Some(0)), "open is not at work");
        drop(early);
        timed.until("one, once the list of sockets was checked again", 31_000, |worker| worker.open == Some(1));

        exchange(&mut client, &mut server, b"a request that is read and not answered");
        timed.until("one awaits", 600, |worker| worker.awaiting == Some(1));
        client.write_all(b"unread").expect("sends");
        timed.until("bytes that nobody read", 600, |worker| worker.unread_bytes == Some(6));
        server.read_exact(&mut [0; 6]).expect("reads");
        server.set_nodelay(true).expect("an option");
        let mut sent = 0;
        let mut buffer = vec![0; 600];
        timed.until("one streams", 600, |_| true);
        wait_for("one streams", || {
            server.write_all(&[7; 600]).expect("sends");
            client.read_exact(&mut buffer).expect("reads");
            sent += 600;
            timed.now_ms += 600;
            let record = timed.node.sample(timed.now_ms);
            match record.workers.first().and_then(|worker| worker.streaming) {
                Some(1) => Ok(()),
                other => Err(format!("{other:?} after {sent} bytes")),
            }
        });
        timed.until("silence is idleness", 600, |worker| (worker.awaiting, worker.streaming) == (Some(0), Some(0)));

        let waiting = TcpStream::connect(at).expect("connects");
        let worker = timed.until("one waits to be accepted", 600, |worker| worker.backlog == Some(1));
        assert_eq!(worker.backlog_limit, Some(128));
        drop((client, server, waiting, listener));
        wait_for("a worker that no longer listens is not told of", || {
            timed.now_ms += 600;
            let workers = timed.node.sample(timed.now_ms).workers;
            if workers.is_empty() { Ok(()) } else { Err(format!("{workers:?}")) }
        });
    });
}

#[test]
fn each_rung_of_the_ladder_gives_what_it_can() {
    private::run("each_rung_of_the_ladder_gives_what_it_can", |place| {
        let directory = tempfile::tempdir().expect("a folder");
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let at = listener.local_addr().expect("bound");
        let full = config(place, at, directory.path());
        let pair =
            |listener: &TcpListener| (TcpStream::connect(at).expect("connects"), listener.accept().expect("accepts"));
        let _early = pair(&listener);

        let mut sockets = Timed::start(&config::Load { programs: false, ..full.clone() });
        assert_eq!(sockets.node.level(), 1);
        let worker = sockets.until("sockets alone", 600, |worker| worker.open == Some(1));
        assert_eq!((worker.opened, worker.bytes_in), (None, None), "unknown is not zero");

        let mut programs = Timed::start(&config::Load { sockets: false, ..full.clone() });
        assert_eq!(programs.node.level(), 2);
        programs.until("programs alone", 200, |worker| worker.opened == Some(0));
        let _late = pair(&listener);
        let worker = programs.until("programs alone, after one opened", 200, |worker| worker.opened == Some(1));
        assert_eq!((worker.open, worker.awaiting, worker.backlog), (None, None, None), "what was before is unknown");

        let neither = Timed::start(&config::Load { sockets: false, programs: false, ..full.clone() });
        assert_eq!(neither.node.level(), 0);
        let root = forebay_ebpf::cgroup::find().expect("cgroup v2");
        let refused = Timed::start(&config::Load { cgroup: Some(root), ..full });
        let why = refused.node.signals().iter().find(|signal| signal.name == "connections").and_then(|s| s.why.clone());
        assert!(why.as_deref().is_some_and(|why| why.contains("root")), "{why:?}");
        assert_eq!(refused.node.level(), 1, "the other signals are there");
    });
}

/// The agent's binary, which lies beside the folder of test binaries.
fn binary() -> PathBuf {
    let tests = std::env::current_exe().expect("own path");
    let folder = tests.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    let path = folder.join("forebay-agent");
    assert!(path.is_file(), "{} is not built: cargo build --bins", path.display());
    path
}

struct Agent {
    child: Child,
    listen: SocketAddr,
}

impl Agent {
    /// In this test's namespace every port is free.
    fn start(place: &Place, worker: SocketAddr, port: u16, directory: &Path) -> Self {
        let file = directory.join(format!("agent-{port}.toml"));
        let listen = SocketAddr::from(([127, 0, 0, 1], port));
        let text = format!(
            "[load]\nlisten = \"{listen}\"\nmetrics = \"127.0.0.1:{}\"\nworkers = [\"{worker}\"]\ncgroup = \"{}\"\nstate_dir = \"{}\"\n",
            port + 1,
            place.cgroup.display(),
            directory.display()
        );
        std::fs::write(&file, text).expect("written");
        let mut command = Command::new(binary());
        command.args(["load", "--config"]).arg(&file).stdin(Stdio::null());
        Self { child: command.spawn().expect("starts"), listen }
    }

    /// Its welcome and its first record.
    fn hear(&self) -> (Welcome, Load) {
        let mut stream = wait_for("the agent listens", || TcpStream::connect(self.listen).map_err(|e| e.to_string()));
        let hello = Hello { version: wire::VERSION, token: None };
        stream.write_all(&wire::encode(Kind::Hello, &hello).expect("encodes")).expect("sends");
        let mut frame = || {
            let mut length = [0; 4];
            stream.read_exact(&mut length).expect("a frame");
            let mut frame = vec![0; u32::from_be_bytes(length) as usize];
            stream.read_exact(&mut frame).expect("a frame");
            frame
        };
        let welcome = wire::decode(wire::split(&frame()).expect("a frame").1).expect("a welcome");
        let load = wire::decode(wire::split(&frame()).expect("a frame").1).expect("a record");
        (welcome, load)
    }

    fn kill(mut self) {
        self.child.kill().expect("kill -9");
        self.child.wait().expect("ends");
    }
}

#[test]
fn a_killed_agent_leaves_nothing_and_a_second_one_goes_without_programs() {
    private::run("a_killed_agent_leaves_nothing_and_a_second_one_goes_without_programs", |place| {
        let directory = tempfile::tempdir().expect("a folder");
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let at = listener.local_addr().expect("bound");
        let first = Agent::start(place, at, 7_470, directory.path());
        let (welcome, load) = first.hear();
        assert_eq!((welcome.level, load.workers.len()), (2, 1));
        let second = Agent::start(place, at, 7_480, directory.path());
        assert_eq!(second.hear().0.level, 1, "one owner of the programs");
        first.kill();
        second.kill();
        let third = Agent::start(place, at, 7_490, directory.path());
        let (anew, load) = third.hear();
        assert_eq!(anew.level, 2, "the lock went with its holder");
        assert_ne!(anew.epoch, welcome.epoch);
        assert!(load.workers.iter().all(|worker| worker.opened == Some(0)), "counters begin anew: {load:?}");
        third.kill();
    });
}
