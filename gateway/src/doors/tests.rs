//! Roles, and files that change while the gateway runs.

use super::keys::{KEY_BYTES, make};
use super::{Doors, Files, Role};
use crate::doors::Built;
use std::path::Path;
use std::sync::Arc;
use tokio::time::{Duration, sleep, timeout};

fn load(path: &Path) -> Doors {
    let files = Files { keys: Some(path.to_owned()), ..Files::default() };
    let built = files.read().and_then(Built::of).expect("a good file");
    Doors::with(files, built)
}

#[test]
fn roles_are_held_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("keys");
    let (user, line) = make("acme", "use", [1; KEY_BYTES]).expect("made");
    let (operator, other) = make("ops", "operate", [2; KEY_BYTES]).expect("made");
    std::fs::write(&path, format!("{line}\n{other}\n")).expect("written");
    let doors = load(&path);
    let status = |key: Option<&str>, role| match doors.admit(key.map(str::as_bytes), role) {
        Ok(caller) => (200, caller.tenant.map(|tenant| tenant.to_string())),
        Err(fault) => (fault.status, None),
    };
    assert_eq!(status(Some(&user), Role::Use), (200, Some("acme".to_owned())));
    assert_eq!(status(Some(&user), Role::Operate), (403, None));
    assert_eq!(status(Some(&operator), Role::Operate), (200, Some("ops".to_owned())));
    assert_eq!(status(Some(&operator), Role::Use), (403, None));
    assert_eq!(status(Some("fbk_no"), Role::Use), (401, None));
    assert_eq!(status(None, Role::Use), (401, None));
    assert!(Doors::open().admit(None, Role::Use).is_ok_and(|caller| caller.tenant.is_none()));
}

#[tokio::test]
async fn a_changed_file_applies_and_a_bad_one_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("keys");
    let (old, line) = make("a", "use", [1; KEY_BYTES]).expect("made");
    let (new, other) = make("b", "use", [2; KEY_BYTES]).expect("made");
    std::fs::write(&path, &line).expect("written");
    let doors = Arc::new(load(&path));
    let tasks = crate::tasks::TaskGroup::new();
    tasks.spawn("doors", doors.clone().watch());
    let knows = |key: &str| doors.admit(Some(key.as_bytes()), Role::Use).is_ok();
    let until = async |holds: &dyn Fn() -> bool| {
        let waiting = async {
            while !holds() {
                doors.look_now();
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(60), waiting).await.expect("in time");
    };

    std::fs::write(&path, &other).expect("written");
    until(&|| knows(&new)).await;
    assert!(!knows(&old), "the old key went with the file");

    std::fs::write(&path, "nonsense").expect("written");
    until(&|| doors.problem().is_some()).await;
    assert!(knows(&new), "what was read before stays");
    std::fs::remove_file(&path).expect("removed");
    until(&|| doors.problem().is_some_and(|problem| problem.contains("cannot read"))).await;
    assert!(knows(&new) && !knows(&old));

    std::fs::write(&path, &line).expect("written");
    until(&|| knows(&old)).await;
    assert_eq!(doors.problem(), None);
    assert!(tasks.drain(Duration::from_secs(60)).await);
}
