//! A cgroup and a network namespace for one test.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};

const CGROUP: &str = "FOREBAY_TEST_CGROUP";

/// Where a test's body runs.
#[derive(Debug)]
pub struct Place {
    /// Its cgroup; the process is in it.
    pub cgroup: PathBuf,
}

/// Why tests of this package cannot run here; `None` when they can.
pub fn hindrance() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".to_owned());
    }
    for tool in ["unshare", "ip"] {
        if Command::new(tool).arg("--version").output().is_err() && Command::new(tool).arg("-V").output().is_err() {
            return Some(format!("`{tool}` is not installed"));
        }
    }
    if let Some(error) = forebay_ebpf::cgroup::find().err() {
        return Some(error.to_string());
    }
    // A program that the verifier refuses is a failure of the program, not of privileges.
    forebay_ebpf::Load::unattached(false)
        .err()
        .filter(|error| error.verifier_log.is_none())
        .map(|error| error.to_string())
}

/// Runs `body` in a place of its own. `name` is the test's full name, since the test starts itself again by it.
#[expect(clippy::disallowed_methods, reason = "FOREBAY_REQUIRE is a switch of the suites")]
pub fn run(name: &str, body: impl FnOnce(&Place)) {
    if let Some(place) = entered() {
        return body(&place);
    }
    if let Some(why) = hindrance() {
        let required = std::env::var("FOREBAY_REQUIRE").is_ok_and(|value| value == "all");
        assert!(
            !(required && rustix::process::geteuid().is_root()),
            "FOREBAY_REQUIRE=all and root, but kernel suites cannot run: {why}"
        );
        report(&format!("skipped {name}: {why}"));
        return;
    }
    let cgroup = Cgroup::make();
    let status = enter(&cgroup, &["--exact", name, "--nocapture", "--test-threads", "1"]);
    assert!(status.success(), "{name} failed inside its namespaces ({status}); its output is above");
}

/// Starts this program again with `arguments`, in `cgroup` and namespaces of its own, and waits for it.
pub fn enter(cgroup: &Cgroup, arguments: &[&str]) -> ExitStatus {
    Command::new("sh")
        .args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec unshare --net --mount --propagation private \"$@\""])
        .arg(&cgroup.path)
        .arg(std::env::current_exe().expect("own path"))
        .args(arguments)
        .env(CGROUP, &cgroup.path)
        .status()
        .expect("sh runs")
}

/// The cgroup that this process was entered into by [`enter`], with the loopback interface up.
#[expect(clippy::disallowed_methods, reason = "how the inner process knows that it is one")]
pub fn entered() -> Option<Place> {
    let cgroup = PathBuf::from(std::env::var(CGROUP).ok()?);
    command("ip", &["link", "set", "lo", "up"]);
    assert!(!forebay_ebpf::cgroup::is_root(&cgroup), "never at the root");
    assert_eq!(forebay_ebpf::cgroup::of(std::process::id()).ok().as_ref(), Some(&cgroup), "moved into it");
    Some(Place { cgroup })
}

#[expect(clippy::print_stderr, reason = "a test that does not run must say why")]
fn report(line: &str) {
    eprintln!("{line}");
}

/// Runs a tool that must succeed; its output.
pub fn command(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool).args(arguments).output().expect("the tool is installed");
    let failure = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{tool} {}: {failure}", arguments.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A cgroup that goes, with everything in it, when this does.
#[derive(Debug)]
pub struct Cgroup {
    /// Where.
    pub path: PathBuf,
}

impl Cgroup {
    /// Below the root of the hierarchy.
    pub fn make() -> Self {
        let root = forebay_ebpf::cgroup::find().expect("cgroup v2");
        Self::below(&root)
    }

    /// Below `parent`.
    pub fn below(parent: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("forebay-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(name);
        std::fs::create_dir(&path).expect("a cgroup can be made");
        Self { path }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::write(self.path.join("cgroup.kill"), "1");
        // What was killed leaves a moment later.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
