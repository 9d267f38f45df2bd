//! `http[s]://host:port[@rank]` → what is needed to reach a worker.

/// A worker's URL taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerUrl {
    /// `http://host:port` or `https://host:port`, without rank and trailing slash.
    pub base: String,
    /// `host:port` as `Host` carries it; IPv6 in brackets.
    pub authority: String,
    /// Name or address to look up, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Speaks TLS.
    pub secure: bool,
    /// Data-parallel rank, where the URL names one.
    pub rank: Option<u16>,
}

/// Why a worker's URL cannot be used; says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("worker URL {url:?}: {reason}")]
pub struct UrlError {
    /// As it was given.
    pub url: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl WorkerUrl {
    /// The one spelling of this URL: base, and the rank where it names one.
    pub fn canonical(&self) -> String {
        self.rank.map_or_else(|| self.base.clone(), |rank| format!("{}@{rank}", self.base))
    }

    /// Takes `url` apart. The rank suffix goes first: to a URL parser `host:port@1` is a user and a password.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let wrong = |reason| UrlError { url: url.to_owned(), reason };
        let (scheme, rest) = match url.split_once("://") {
            Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
            _ => return Err(wrong("write http://host:port")),
        };
        let (place, rank) = match rest.rsplit_once('@') {
            None => (rest, None),
            Some((place, rank)) => match rank.trim_end_matches('/').parse() {
                Ok(rank) => (place, Some(rank)),
                Err(_) => return Err(wrong("after @ comes a data-parallel rank; user names are not supported")),
            },
        };
        let authority = place.trim_end_matches('/');
        if authority.contains(['/', '?', '#', '@']) {
            return Err(wrong("leave out the path: write http://host:port"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(inside) => inside.split_once("]:").ok_or_else(|| wrong("write IPv6 as http://[::1]:8000"))?,
            None => authority.rsplit_once(':').ok_or_else(|| wrong("the port is missing"))?,
        };
        let port: u16 = port.parse().map_err(|_| wrong("the port is not a number from 1 to 65535"))?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let is_host = if authority.starts_with('[') {
            host.parse::<std::net::Ipv6Addr>().is_ok()
        } else {
            !host.is_empty() && host.chars().all(allowed)
        };
        if !is_host || port == 0 {
            return Err(wrong("the host is neither a name nor an address, or the port is 0"));
        }
        Ok(Self {
            base: format!("{scheme}://{authority}"),
            secure: scheme == "https",
            authority: authority.to_owned(),
            host: host.to_owned(),
            port,
            rank,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_urls_apart() {
        let parts = |url: &str| WorkerUrl::parse(url).map(|u| (u.base, u.host, u.port, u.rank)).map_err(|e| e.reason);
        let ok = |base: &str, host: &str, port, rank| Ok((base.to_owned(), host.to_owned(), port, rank));
        assert_eq!(parts("http://gpu-1.lan:8000"), ok("http://gpu-1.lan:8000", "gpu-1.lan", 8000, None));
        assert_eq!(parts("https://gpu-1:8443"), ok("https://gpu-1:8443", "gpu-1", 8443, None));
        assert_eq!(parts("http://gpu-1:8000/"), ok("http://gpu-1:8000", "gpu-1", 8000, None));
        assert_eq!(parts("http://10.0.0.1:80@3"), ok("http://10.0.0.1:80", "10.0.0.1", 80, Some(3)));
        assert_eq!(parts("http://[::1]:8000@0/"), ok("http://[::1]:8000", "::1", 8000, Some(0)));
        for bad in [
            "gpu:8000",
            "ftp://gpu:8000",
            "http://gpu",
            "http://gpu:0",
            "http://gpu:99999",
            "http://:8000",
            "http://gpu:8000/v1",
            "http://user:secret@gpu:8000",
            "http://[::1:8000",
            "http://[zz]:80",
            "http://a b:80",
            "http://gpu:80@",
            "",
            "http://x:1@1@2",
        ] {
            assert!(parts(bad).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(url in "(http://)?[a-z0-9:@/\\[\\].]{0,24}") {
            let _ = WorkerUrl::parse(&url);
        }
    }
}
