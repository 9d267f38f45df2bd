//! A second network namespace and a cable to it.

use crate::private::command;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::thread::JoinHandle;

/// This end's interface.
pub const NEAR: &str = "forebay0";
/// This end's address.
pub const NEAR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Addresses of the far end: the second is for whoever must not be taken for the first.
pub const FAR_ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 2), Ipv4Addr::new(10, 77, 0, 3)];
const FAR: &str = "forebay1";
const NAMESPACE: &str = "forebay-far";

/// The cable; the far end is in a namespace that goes with the test's mounts.
#[derive(Debug)]
pub struct Cable;

impl Cable {
    /// Lays it. Must run inside [`crate::private::run`].
    pub fn lay() -> Self {
        command("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
        command("ip", &["netns", "add", NAMESPACE]);
        command("ip", &["link", "add", NEAR, "type", "veth", "peer", "name", FAR, "netns", NAMESPACE]);
        command("ip", &["address", "add", &format!("{NEAR_ADDRESS}/24"), "dev", NEAR]);
        command("ip", &["link", "set", NEAR, "up"]);
        for address in FAR_ADDRESSES {
            command("ip", &["-n", NAMESPACE, "address", "add", &format!("{address}/24"), "dev", FAR]);
        }
        command("ip", &["-n", NAMESPACE, "link", "set", FAR, "up"]);
        Self
    }

    /// Runs `body` in a thread at the far end.
    pub fn far<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        std::thread::spawn(move || {
            let namespace = File::open(format!("/run/netns/{NAMESPACE}")).expect("the namespace");
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("moves in");
            body()
        })
    }
}
