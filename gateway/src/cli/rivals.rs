//! Flags under the names that sglang-router and vllm-router give them, so that their start scripts go on working.
//!
//! Only where the meaning is the same: each is another spelling of a key here. What has no counterpart (cache trees and
//! their thresholds, breakers counted otherwise, prefill and decode pools) is refused by its name as any unknown flag.

use clap::Args;

/// Another router's name for a policy, and ours. `random` and `prefix_hash` have none.
const POLICIES: [(&str, &str); 9] = [
    ("cache_aware", "kv"),
    ("kv_aware", "kv"),
    ("round_robin", "round-robin"),
    ("power_of_two", "power-of-two"),
    ("least_load", "least-loaded"),
    ("consistent_hash", "consistent-hash"),
    ("consistent_hashing", "consistent-hash"),
    ("sticky_least_loaded", "session"),
    ("manual", "session"),
];

/// What is waited for the first byte and between two, unless the whole exchange is to be shorter.
const FIRST_BYTE_SECONDS: u64 = 600;
const IDLE_SECONDS: u64 = 120;

/// Our name for a policy that another router names, else the name as it is.
pub(super) fn policy(name: &str) -> &str {
    POLICIES.iter().find(|(theirs, _)| *theirs == name).map_or(name, |(_, ours)| ours)
}

/// Spellings of other routers.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Spellings of sglang-router and vllm-router")]
pub(super) struct Spellings {
    /// --worker, several after one flag.
    #[arg(long, num_args = 1.., value_name = "URL")]
    worker_urls: Vec<String>,
    /// Address of --listen.
    #[arg(long, value_name = "ADDRESS")]
    host: Option<String>,
    /// Port of --listen.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Address of --admin, where the metrics are.
    #[arg(long, value_name = "ADDRESS")]
    prometheus_host: Option<String>,
    /// Port of --admin, where the metrics are.
    #[arg(long, value_name = "PORT")]
    prometheus_port: Option<u16>,
    /// upstream.total_timeout, in seconds.
    #[arg(long, value_name = "SECONDS")]
    request_timeout_secs: Option<u64>,
    /// listen.max_body_bytes, in bytes.
    #[arg(long, value_name = "BYTES")]
    max_payload_size: Option<u64>,
    /// listen.drain_timeout, in seconds.
    #[arg(long, value_name = "SECONDS")]
    shutdown_grace_period_secs: Option<u64>,
    /// routing.max_attempts.
    #[arg(long, value_name = "N")]
    retry_max_retries: Option<u32>,
    /// routing.max_attempts=1.
    #[arg(long)]
    disable_retries: bool,
    /// health.interval, in seconds.
    #[arg(long, value_name = "SECONDS")]
    health_check_interval_secs: Option<u64>,
    /// health.timeout, in seconds.
    #[arg(long, value_name = "SECONDS")]
    health_check_timeout_secs: Option<u64>,
    /// health.failures.
    #[arg(long, value_name = "N")]
    health_failure_threshold: Option<u32>,
    /// health.eject_after.
    #[arg(long, value_name = "N")]
    cb_failure_threshold: Option<u32>,
    /// health.eject_for, in seconds.
    #[arg(long, value_name = "SECONDS")]
    cb_timeout_duration_secs: Option<u64>,
    /// upstream.certificate_file.
    #[arg(long, value_name = "FILE")]
    client_cert_path: Option<String>,
    /// upstream.certificate_key_file.
    #[arg(long, value_name = "FILE")]
    client_key_path: Option<String>,
    /// upstream.ca_file.
    #[arg(long, value_name = "FILE")]
    ca_cert_paths: Option<String>,
    /// The level of FOREBAY_LOG.
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

impl Spellings {
    /// Level of the log.
    pub(super) fn log_level(&self) -> Option<&str> {
        match self.log_level.as_deref() {
            Some("warning") => Some("warn"),
            Some("critical") => Some("error"),
            level => level,
        }
    }

    /// (flag, key, value), and the workers.
    pub(super) fn read(self) -> (Vec<(String, String, String)>, Vec<String>) {
        let seconds = |n: Option<u64>| n.map(|n| format!("{n}s"));
        let attempts = if self.disable_retries { Some(1) } else { self.retry_max_retries };
        let address = |host: Option<String>, port: Option<u16>, default_host: &str, default_port: u16| {
            (host.is_some() || port.is_some()).then(|| {
                let host = host.unwrap_or_else(|| default_host.to_owned());
                let port = port.unwrap_or(default_port);
                if host.contains(':') && !host.starts_with('[') {
                    format!("[{host}]:{port}")
                } else {
                    format!("{host}:{port}")
                }
            })
        };
        // No part of an exchange may take longer than the whole.
        let part = |most: u64| seconds(self.request_timeout_secs.filter(|whole| *whole < most));
        let named = [
            ("--request-timeout-secs", "upstream.first_byte_timeout", part(FIRST_BYTE_SECONDS)),
            ("--request-timeout-secs", "upstream.idle_timeout", part(IDLE_SECONDS)),
            ("--host/--port", "listen.address", address(self.host, self.port, "0.0.0.0", 30_000)),
            (
                "--prometheus-host/--prometheus-port",
                "admin.address",
                address(self.prometheus_host, self.prometheus_port, "127.0.0.1", 29_000),
            ),
            ("--request-timeout-secs", "upstream.total_timeout", seconds(self.request_timeout_secs)),
            ("--max-payload-size", "listen.max_body_bytes", self.max_payload_size.map(|n| format!("{n}B"))),
            ("--shutdown-grace-period-secs", "listen.drain_timeout", seconds(self.shutdown_grace_period_secs)),
            ("--retry-max-retries", "routing.max_attempts", attempts.map(|n| n.to_string())),
            ("--health-check-interval-secs", "health.interval", seconds(self.health_check_interval_secs)),
            ("--health-check-timeout-secs", "health.timeout", seconds(self.health_check_timeout_secs)),
            ("--health-failure-threshold", "health.failures", self.health_failure_threshold.map(|n| n.to_string())),
            ("--cb-failure-threshold", "health.eject_after", self.cb_failure_threshold.map(|n| n.to_string())),
            ("--cb-timeout-duration-secs", "health.eject_for", seconds(self.cb_timeout_duration_secs)),
            ("--client-cert-path", "upstream.certificate_file", self.client_cert_path),
            ("--client-key-path", "upstream.certificate_key_file", self.client_key_path),
            ("--ca-cert-paths", "upstream.ca_file", self.ca_cert_paths),
        ];
        let scalars =
            named.into_iter().filter_map(|(flag, key, value)| Some((flag.to_owned(), key.to_owned(), value?)));
        (scalars.collect(), self.worker_urls)
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::{Command, parse};
    use crate::config::Environment;
    use std::ffi::OsString;
    use std::time::Duration;

    fn load(flags: &str) -> Result<crate::config::Loaded, String> {
        let words = ["forebay", "serve"].into_iter().chain(flags.split_whitespace()).map(OsString::from);
        let Ok(Command::Serve(settings)) = parse(words) else { return Err("refused".to_owned()) };
        settings.sources(Environment::default()).load().map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_start_script_of_another_router_means_the_same_here() {
        let loaded = load(
            "--worker-urls http://10.0.0.1:8000 http://10.0.0.2:8000 --policy cache_aware --host 127.0.0.1 --port 30000 \
             --request-timeout-secs 1800 --max-payload-size 1048576 --health-failure-threshold 4 \
             --health-check-interval-secs 60 --cb-timeout-duration-secs 30 --retry-max-retries 5 --prometheus-port 29001",
        );
        let config = loaded.expect("a script").config;
        let urls: Vec<&str> = config.workers.iter().map(|worker| worker.url.as_str()).collect();
        assert_eq!(urls, ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]);
        assert_eq!(config.routing.policy, forebay_routing::Policy::Kv);
        assert_eq!(config.listen.address.to_string(), "127.0.0.1:30000");
        assert_eq!(config.admin.address.to_string(), "127.0.0.1:29001");
        assert_eq!(config.upstream.total_timeout, Duration::from_secs(1_800));
        assert_eq!(config.listen.max_body_bytes, 1 << 20);
        assert_eq!((config.health.failures, config.health.eject_for), (4, Duration::from_secs(30)));
        assert_eq!(config.routing.max_attempts, 5);
        let short = load("--request-timeout-secs 60").expect("a script").config.upstream;
        assert_eq!((short.total_timeout, short.first_byte_timeout), (Duration::from_secs(60), Duration::from_secs(60)));
        assert_eq!(load("--disable-retries").expect("a script").config.routing.max_attempts, 1);
    }

    #[test]
    fn what_would_mean_something_else_is_refused() {
        for flags in ["--policy random", "--policy prefix_hash", "--cache-threshold 0.3", "--max-concurrent-requests 8"]
        {
            assert!(load(flags).is_err(), "{flags}");
        }
    }

    #[test]
    fn the_page_names_every_spelling() {
        let page = include_str!("../../../README.md");
        let arguments = <super::Spellings as clap::Args>::augment_args(clap::Command::new("x"));
        for argument in arguments.get_arguments() {
            let Some(long) = argument.get_long() else { continue };
            assert!(page.contains(&format!("`--{long}`")), "--{long} is not in README.md");
        }
        for (theirs, _) in super::POLICIES {
            assert!(page.contains(&format!("`{theirs}`")), "{theirs} is not in README.md");
        }
    }
}
