//! What this kernel and these privileges allow: found out by trying, never by a version number.

use crate::cgroup;
use crate::error::Error;
use crate::guard::Guard;
use crate::load::Load;

/// Something that is either possible here, or not for this reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// What it is; a metric label.
    pub name: &'static str,
    /// What it gives.
    pub gives: &'static str,
    /// Why not.
    pub missing: Option<Error>,
}

/// Tries everything that needs no place to attach to. Leaves nothing behind.
pub fn probe() -> Vec<Feature> {
    vec![
        Feature { name: "cgroup_v2", gives: "a place for conn_load", missing: cgroup::find().err() },
        Feature {
            name: "conn_load",
            gives: "connections opened and closed, bytes, retransmits",
            missing: Load::unattached(false).err(),
        },
        Feature {
            name: "busy",
            gives: "requests whose answer has not begun (experimental)",
            missing: Load::unattached(true).err(),
        },
        Feature { name: "xdp_guard", gives: "deny list and limit per source", missing: Guard::open(None).err() },
    ]
}
