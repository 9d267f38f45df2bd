//! Child processes of a suite: found beside the suite's own binary, logged to a file, ended with it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// How long a child may take to end after SIGTERM before it is killed.
const TERM_GRACE: Duration = Duration::from_secs(5);

/// Bytes of a log that an error message shows.
const LOG_TAIL_BYTES: u64 = 2_000;

/// One running child. Dropping it kills it: nothing that a suite starts outlives the suite.
pub struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

/// A child that did not do what was asked of it.
#[derive(Debug)]
pub struct Failure(pub String);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// Path of a binary of this workspace: beside the running one, which lies in `deps` when it is a test.
pub fn binary(name: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(|e| Failure(format!("own path: {e}")))?;
    let folder = own.parent().unwrap_or(Path::new("."));
    let folders = [Some(folder), folder.parent()];
    let found = folders.into_iter().flatten().map(|folder| folder.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        Failure(format!(
            "{name} is not built in {}; run `make build` (debug) or `make demo` (release)",
            folder.display()
        ))
    })
}

/// Root of the repository.
pub fn repository() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests)
}

impl Process {
    /// Starts `program`; both of its output streams go to `log`.
    pub fn spawn(
        name: &str,
        program: &Path,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
        log: PathBuf,
    ) -> Result<Self, Failure> {
        // Emptied first: who waits for a line of this process must not find one of a process before it.
        let open = || File::options().create(true).append(true).open(&log);
        let outputs = File::create(&log).and_then(|_| Ok((open()?, open()?)));
        let (out, err) = outputs.map_err(|e| Failure(format!("{}: {e}", log.display())))?;
        let child = Command::new(program)
            .args(args)
            // Its own group: ctrl-C at the terminal reaches the suite alone, which then ends its children in order.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(|e| Failure(format!("cannot start {}: {e}", program.display())))?;
        Ok(Self { child, name: name.to_owned(), log })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Exit status, once it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Fails with the tail of its log when it has ended.
    pub fn expect_running(&mut self) -> Result<(), Failure> {
        match self.ended() {
            None => Ok(()),
            Some(status) => Err(Failure(format!("{} ended ({status}); its log says:\n{}", self.name, self.log_tail()))),
        }
    }

    /// Everything it has logged.
    pub fn log_text(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let read = || -> std::io::Result<String> {
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_else(|e| format!("(no log: {e})"))
    }

    /// SIGKILL, at once; what a crash or the kernel's memory killer does.
    pub fn kill(&mut self) {
        // Only fails when the child has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, then SIGKILL when it does not end within the grace.
    pub async fn stop(mut self) {
        let _ = signal(self.pid(), "TERM");
        let deadline = tokio::time::Instant::now() + TERM_GRACE;
        while self.ended().is_none() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Lets it run on after this process.
    pub fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends `name` (`TERM`, `HUP`, `STOP` …) to one of our own children.
pub fn signal(pid: u32, name: &str) -> Result<(), Failure> {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure(format!("kill -{name} {pid}: {status}"))),
        Err(error) => Err(Failure(format!("kill: {error}"))),
    }
}
