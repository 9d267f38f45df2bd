//! Where cgroup v2 is, and which of its cgroups a process is in: from `/proc`, since hybrid hosts mount it elsewhere.

use crate::error::{Error, Stage};
use std::fs;
use std::path::{Path, PathBuf};

/// The mount point of cgroup v2, by the text of `/proc/self/mountinfo`.
pub fn mount_point(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let kind = after.split(' ').next()?;
        // The root of the hierarchy must be what is mounted: a bind mount of a part of it shows paths that are not below it.
        let mut fields = before.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (kind == "cgroup2" && (root == "/" || root.starts_with("/.."))).then(|| PathBuf::from(unescape(point)))
    })
}

/// Octal escapes, as mountinfo has for blanks and backslashes.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((head, tail)) = rest.split_once('\\') {
        out.push_str(head);
        match tail.get(..3).and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                out.push(char::from(byte));
                rest = &tail[3..];
            }
            None => {
                out.push('\\');
                rest = tail;
            }
        }
    }
    out + rest
}

/// Path of a process's cgroup below the mount point, by the text of `/proc/PID/cgroup`.
pub fn membership(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The mount point of cgroup v2 on this host.
pub fn find() -> Result<PathBuf, Error> {
    let path = "/proc/self/mountinfo";
    let text = fs::read_to_string(path).map_err(|error| Error::io(Stage::Place, path, &error))?;
    mount_point(&text).ok_or_else(|| {
        Error::new(Stage::Place, "cgroup v2", "is not mounted; mount -t cgroup2 none /sys/fs/cgroup/unified")
    })
}

/// The cgroup of process `pid`, as a path below the mount point.
pub fn of(pid: u32) -> Result<PathBuf, Error> {
    let path = format!("/proc/{pid}/cgroup");
    let text = fs::read_to_string(&path).map_err(|error| Error::io(Stage::Place, path.clone(), &error))?;
    let below = membership(&text)
        .ok_or_else(|| Error::new(Stage::Place, path, "names no cgroup v2; the host has only version 1"))?;
    Ok(join(&find()?, below))
}

fn join(mount: &Path, below: &str) -> PathBuf {
    mount.join(below.trim_start_matches('/'))
}

/// Whether `path` is the root of the hierarchy, where programs would see both ends of every connection.
pub fn is_root(path: &Path) -> bool {
    // Only the root has no `cgroup.events`.
    !path.join("cgroup.events").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_2_is_found_wherever_it_is_mounted() {
        let unified = "25 19 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(mount_point(unified), Some("/sys/fs/cgroup".into()));
        let hybrid = "30 19 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
                      31 30 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      32 30 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 none rw\n";
        assert_eq!(mount_point(hybrid), Some("/sys/fs/cgroup/unified".into()));
        let v1_only = "31 30 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        assert_eq!(mount_point(v1_only), None);
        let bound = "40 1 0:27 /user.slice /mnt/part rw - cgroup2 none rw\n";
        assert_eq!(mount_point(bound), None, "a part is not the hierarchy");
        let blank = "40 1 0:27 / /mnt/a\\040b rw - cgroup2 none rw\n";
        assert_eq!(mount_point(blank), Some("/mnt/a b".into()));
    }

    #[test]
    fn membership_is_the_line_of_version_2() {
        assert_eq!(membership("12:cpu:/a\n0::/system.slice/vllm.service\n"), Some("/system.slice/vllm.service"));
        assert_eq!(membership("12:cpu:/a\n"), None);
    }
}
