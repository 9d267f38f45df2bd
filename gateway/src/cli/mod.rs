//! cli: the command line. `serve` runs the gateway, `check` validates a configuration, `explain` asks a running gateway
//! why it would choose a worker, `doctor` proves engines fit, `key` makes API keys.
//!
//! Exit codes, as `sysexits.h` has them: 0 done, 64 usage or configuration, 69 something needed is not there (a port, a
//! gateway, an engine), 70 a failure of this program.

pub mod check;
pub mod doctor;
pub mod explain;
pub mod key;
mod rivals;
mod table;

use crate::config::{Environment, Flags, Sources};
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// How a command ended, for the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done,
    /// The command line or the configuration is wrong.
    Usage,
    /// Something needed is not there.
    Unavailable,
    /// This program failed.
    Internal,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Usage => 64,
            Exit::Unavailable => 69,
            Exit::Internal => 70,
        })
    }
}

/// KV-aware gateway in front of LLM engines.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 64 usage or configuration, 69 something needed is not there, 70 a failure \
of this program.\nEvery configuration key also has an environment variable; see `forebay check --reference`.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway.
    Serve(Settings),
    /// Validate a configuration, or print the reference of all keys.
    Check {
        /// Configuration file; without it, environment and defaults alone.
        file: Option<PathBuf>,
        /// Print the reference of all keys, in Markdown.
        #[arg(long)]
        reference: bool,
    },
    /// Ask a running gateway which worker it would choose for a request, and why.
    Explain {
        /// Whom to ask.
        #[command(flatten)]
        admin: explain::Admin,
        /// The body is one of /v1/completions, not of /v1/chat/completions.
        #[arg(long)]
        completions: bool,
        /// File with the request's JSON body, or - for standard input.
        body: PathBuf,
    },
    /// Prove that live engines fit: reachable, model, block size, events, ranks, tokens.
    Doctor(Settings),
    /// Make API keys.
    Key {
        /// What to do with keys.
        #[command(subcommand)]
        command: KeyCommand,
    },
}

/// What may be done with API keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key: shown once on standard error; the line for keys.file goes to standard output.
    New {
        /// Whose it is, as the access log names them.
        tenant: String,
        /// What it may do: use, operate, or both with a comma between.
        #[arg(long, default_value = "use")]
        roles: String,
    },
}

/// Where settings come from.
#[derive(Args, Clone, Debug, Default)]
pub struct Settings {
    /// TOML file [env: FOREBAY_CONFIG].
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where clients connect.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where operators connect.
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// Base URL of an engine; repeat for each. Replaces the file's list.
    #[arg(long, value_name = "URL")]
    worker: Vec<String>,
    /// How a worker is chosen: kv, least-loaded, power-of-two, round-robin, consistent-hash, session.
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Folder with a model's tokenizer.json; repeat for each. Replaces the file's list of models.
    #[arg(long, value_name = "MODEL=FOLDER")]
    tokenizer: Vec<String>,
    /// off, stdout, stderr or a file.
    #[arg(long, value_name = "WHERE")]
    access_log: Option<String>,
    /// Any other key, such as listen.max_body_bytes=8MiB; repeat for each.
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value)]
    set: Vec<(String, String)>,
    /// As other routers call them.
    #[command(flatten)]
    spellings: rivals::Spellings,
}

impl Settings {
    /// As sources, with `environment` behind the flags.
    pub fn sources(self, mut environment: Environment) -> Sources {
        if let Some(level) = self.spellings.log_level() {
            // A flag wins over the environment.
            environment.0.insert("FOREBAY_LOG".to_owned(), level.to_owned());
        }
        let policy = self.policy.as_deref().map(|name| rivals::policy(name).to_owned());
        let (spelled, more) = self.spellings.read();
        let named = [
            ("--listen", "listen.address", self.listen),
            ("--admin", "admin.address", self.admin),
            ("--policy", "routing.policy", policy),
            ("--access-log", "observe.access_log", self.access_log),
        ];
        let named = named.into_iter().filter_map(|(flag, key, value)| Some((flag.to_owned(), key.to_owned(), value?)));
        let set = self.set.into_iter().map(|(key, value)| ("--set".to_owned(), key, value));
        Sources {
            file: self.config.or_else(|| environment.find("FOREBAY_CONFIG").map(PathBuf::from)),
            flags: Flags {
                scalars: spelled.into_iter().chain(set).chain(named).collect(),
                workers: self.worker.into_iter().chain(more).collect(),
                tokenizers: self.tokenizer,
            },
            environment,
        }
    }
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// Reads the command line; what is wrong with it, and help, are already printed in the `Err` case.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, Exit> {
    match Cli::try_parse_from(arguments) {
        Ok(cli) => Ok(cli.command),
        Err(error) => {
            // Help and version are answers, not errors, and go to standard output.
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Done };
            // Nobody is left to tell when the terminal is gone.
            _ = error.print();
            Err(exit)
        }
    }
}

/// Writes a line for people to standard output. A reader that went away is no error.
pub fn say(text: &str) {
    _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Writes a line for people to standard error.
pub fn complain(text: &str) {
    _ = writeln!(std::io::stderr().lock(), "forebay: {text}");
}
