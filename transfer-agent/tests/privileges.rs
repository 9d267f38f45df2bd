//! What works with which capabilities, tried: `deploy/CAPABILITIES.md` says the same.

use std::process::Command;

/// Runs the doctor as nobody with these capabilities and no others; what it printed. `None` where that cannot be tried.
fn doctor(capabilities: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        skip("not root");
        return None;
    }
    let list = |prefix: &str| {
        let kept: Vec<String> = capabilities.iter().map(|name| format!("+{name}")).collect();
        std::iter::once(prefix.to_owned()).chain(kept).collect::<Vec<_>>().join(",")
    };
    // The binary may lie where nobody else may look: a copy does not.
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("forebay-agent");
    std::fs::copy(env!("CARGO_BIN_EXE_forebay-agent"), &program).expect("copies");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), mode).expect("open to all");
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"])
        .args(["--bounding-set", &list("-all"), "--inh-caps", &list("-all"), "--ambient-caps", &list("-all")])
        .arg(&program)
        .arg("doctor")
        .output();
    match output {
        Ok(output) if !output.stdout.is_empty() => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => {
            skip(&format!("setpriv: {}", String::from_utf8_lossy(&output.stderr)));
            None
        }
        Err(error) => {
            skip(&format!("setpriv: {error}"));
            None
        }
    }
}

#[expect(clippy::print_stderr, reason = "a test that does not run must say why")]
fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

/// Whether the doctor says that `feature` is there.
fn has(report: &str, feature: &str) -> bool {
    let line = report.lines().find(|line| line.split_whitespace().next() == Some(feature));
    assert!(line.is_some(), "no line for {feature}: {report}");
    let line = line.unwrap_or_default();
    line.split_whitespace().nth(1) == Some("yes")
}

#[test]
fn without_capabilities_sockets_are_listed_and_programs_refused_with_the_reason() {
    let Some(report) = doctor(&[]) else { return };
    assert!(has(&report, "sockets"), "{report}");
    for feature in ["conn_load", "busy", "xdp_guard"] {
        assert!(!has(&report, feature), "{report}");
    }
    assert!(report.contains("no CAP_BPF") && report.contains("[errno 1]"), "{report}");
}

#[test]
fn bpf_net_admin_and_perfmon_are_enough_for_everything() {
    let Some(report) = doctor(&["bpf", "net_admin", "perfmon"]) else { return };
    for feature in ["sockets", "cgroup_v2", "conn_load", "busy", "xdp_guard"] {
        assert!(has(&report, feature), "{report}");
    }
}

#[test]
fn either_alone_is_not_enough() {
    for alone in ["bpf", "net_admin"] {
        let Some(report) = doctor(&[alone]) else { return };
        assert!(
            has(&report, "sockets") && !has(&report, "conn_load") && !has(&report, "xdp_guard"),
            "{alone}: {report}"
        );
    }
}
