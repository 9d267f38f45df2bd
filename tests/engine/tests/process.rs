//! The binary as scripts use it: one line for each engine, answers on the printed address, ends on SIGTERM.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Longest wait for a process: a loaded machine is slow, a hang is for ever.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// Killed when the test ends early.
struct Engines {
    child: Child,
    lines: Vec<String>,
}

impl Drop for Engines {
    fn drop(&mut self) {
        // It has ended already in a test that passes.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Engines {
    fn start(flags: &[&str], engines: usize) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-engine"));
        let mut child = command.args(flags).stdout(Stdio::piped()).spawn().expect("the binary starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let lines = stdout.lines().take(engines).map(|line| line.expect("a line of text")).collect();
        Self { child, lines }
    }

    /// HOST:PORT of each.
    fn addresses(&self) -> Vec<String> {
        let address =
            |line: &String| line.split("http://").nth(1).and_then(|rest| rest.split(' ').next()).map(str::to_owned);
        self.lines.iter().map(|line| address(line).expect("a URL")).collect()
    }

    fn terminate(mut self) -> ExitStatus {
        let status = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().expect("kill runs");
        assert!(status.success());
        wait(&mut self.child)
    }
}

fn wait(child: &mut Child) -> ExitStatus {
    let mut waited = Duration::ZERO;
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        assert!(waited < PATIENCE, "still running");
        std::thread::sleep(PAUSE);
        waited += PAUSE;
    }
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens where it said");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(format!("GET {path} HTTP/1.1\r\nconnection: close\r\n\r\n").as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

#[test]
fn engines_announce_themselves_answer_and_end_on_sigterm() {
    for mode in [&["--port", "0", "--engines", "2"][..], &["--port", "0", "--engines", "2", "--thin", "--kv-events"]] {
        let engines = Engines::start(mode, 2);
        let addresses = engines.addresses();
        assert_ne!(addresses[0], addresses[1]);
        for address in &addresses {
            assert!(get(address, "/health").starts_with("HTTP/1.1 200"), "{address}");
            assert!(get(address, "/kv_event_sources").contains("tcp://127.0.0.1:"));
        }
        assert!(engines.lines.iter().all(|line| line.contains("text=bytes(no-tokenizer-given)")), "the mode is told");
        assert_eq!(engines.terminate().code(), Some(0));
    }
}

#[test]
fn what_cannot_start_ends_with_64_and_a_reason() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    for (flags, reason) in [
        (vec!["--port", &port], "listen on 127.0.0.1:"),
        (vec!["--port", "0", "--speedup", "0"], "speedup"),
        (vec!["--port", "0", "--num-gpu-blocks", "4", "--max-model-len", "100"], "max-model-len"),
        (vec!["--port", "0", "--tokenizer", "/nonexistent"], "/nonexistent/tokenizer.json"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-engine"));
        let output = command.args(&flags).output().expect("the binary starts");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{flags:?}: {told}");
        assert!(told.contains(reason), "{flags:?}: {told}");
    }
}
