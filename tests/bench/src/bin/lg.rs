//! `lg`: the load client. Sends one workload to one port and prints one sample as a JSON line.

use clap::Parser;
use forebay_bench::client::Target;
use forebay_bench::connect::{Dialer, Protocol};
use forebay_bench::drive::{Label, Limit, Plan, run};
use forebay_bench::procfs::Watched;
use forebay_bench::workload::{Mode, Shape, Workload};
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::time::Duration;

/// Load client for OpenAI-compatible routers on 127.0.0.1.
#[derive(Debug, Parser)]
#[command(name = "lg")]
struct Arguments {
    /// Port of the router.
    #[arg(long)]
    port: u16,
    /// Name of the test; with the repetition it decides every prompt.
    #[arg(long, default_value = "adhoc")]
    test: String,
    /// Name of the router, for the sample.
    #[arg(long, default_value = "router")]
    peer: String,
    /// Repetition, from 1.
    #[arg(long, default_value_t = 1)]
    rep: u64,
    /// Requests in flight; each on a connection of its own, but for HTTP/2.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// How requests travel.
    #[arg(long, value_enum, default_value_t = Protocol::Http1)]
    protocol: Protocol,
    /// Requests in flight on one HTTP/2 connection.
    #[arg(long, default_value_t = 16)]
    streams: usize,
    /// PEM with the certificate that the router must show.
    #[arg(long)]
    ca: Option<PathBuf>,
    /// Requests before anything is measured.
    #[arg(long, default_value_t = 500)]
    warmup: u64,
    /// End of the measured phase, in requests.
    #[arg(long, required_unless_present = "seconds")]
    requests: Option<u64>,
    /// End of the measured phase, in seconds.
    #[arg(long)]
    seconds: Option<f64>,
    /// Requests per second; without it each connection sends as soon as it is answered.
    #[arg(long)]
    rate: Option<f64>,
    /// What prompts have in common.
    #[arg(long, value_enum, default_value_t = Mode::Distinct)]
    mode: Mode,
    /// Bytes of each prompt.
    #[arg(long, default_value_t = 200)]
    prompt_bytes: usize,
    /// Groups of mode `session`.
    #[arg(long, default_value_t = 50)]
    groups: usize,
    /// Bytes that a group shares.
    #[arg(long, default_value_t = 100)]
    shared_bytes: usize,
    /// `max_tokens` of each request.
    #[arg(long, default_value_t = 16)]
    max_tokens: u32,
    /// Ask for streams.
    #[arg(long)]
    stream: bool,
    /// Acknowledge every segment at once.
    #[arg(long)]
    quickack: bool,
    /// `model` of each request.
    #[arg(long, default_value = "bench-model")]
    model: String,
    /// Processes to measure, `NAME=PID[+PID…]`; the one under test is `router`.
    #[arg(long = "process")]
    processes: Vec<Watched>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let shape = Shape {
        mode: arguments.mode,
        prompt_bytes: arguments.prompt_bytes,
        groups: arguments.groups,
        shared_bytes: arguments.shared_bytes,
        max_tokens: arguments.max_tokens,
        stream: arguments.stream,
        model: arguments.model,
        port: arguments.port,
    };
    let workload = Workload::new(shape, &arguments.test, arguments.rep);
    let mut watched = arguments.processes;
    watched.push(Watched { name: "client".into(), pids: vec![std::process::id()] });
    let duration = arguments.seconds.map(Duration::from_secs_f64);
    let dialer = match Dialer::new(arguments.port, arguments.protocol, arguments.ca.as_deref()) {
        Ok(dialer) => dialer,
        Err(error) => return fail(&error),
    };
    let plan = Plan {
        dialer,
        target: Target { stream: arguments.stream, quickack: arguments.quickack },
        connections: arguments.connections,
        streams: arguments.streams,
        warmup: arguments.warmup,
        limit: Limit { requests: arguments.requests, duration },
        rate: arguments.rate,
        watched,
    };
    let label = Label { test: arguments.test, peer: arguments.peer, rep: arguments.rep };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("no runtime: {error}")),
    };
    let sample = runtime.block_on(run(plan, workload, label));
    match serde_json::to_string(&sample) {
        Ok(line) => print_line(&line),
        Err(error) => fail(&format!("sample is no JSON: {error}")),
    }
}

#[expect(clippy::print_stdout, reason = "the sample is the program's output")]
fn print_line(line: &str) -> ExitCode {
    println!("{line}");
    ExitCode::SUCCESS
}

#[expect(clippy::print_stderr, reason = "a command's errors go to standard error")]
fn fail(message: &str) -> ExitCode {
    eprintln!("lg: {message}");
    ExitCode::FAILURE
}
