//! TLS on both sides: certificates by server name for clients, trust and an own certificate towards engines.
//!
//! rustls with `ring`: it compiles in seconds without CMake or Go, which aws-lc needs, and all its licences are allowed
//! here. What this gives up is the post-quantum key exchange, which ring does not have.

use super::DoorsError;
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::Arc;

/// Certificates of one listener; every handshake with a server name walks them.
pub(super) const MAX_CERTIFICATES: usize = 256;
/// Bytes of one PEM file. A chain has some 10 KiB; the system's list of authorities has 220 KiB.
pub(super) const MAX_PEM_BYTES: u64 = 4 << 20;
/// Where distributions keep the authorities that they trust.
pub(super) const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Protocols offered to clients, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// PEM texts of a chain and its key.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) chain: String,
    pub(super) key: String,
}

/// PEM texts of the clients' side.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct ServerTexts {
    pub(super) pairs: Vec<Pair>,
    pub(super) client_authorities: Option<String>,
    pub(super) client_certificate_required: bool,
    pub(super) http2: bool,
}

/// PEM texts of the engines' side.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct ClientTexts {
    pub(super) authorities: Option<String>,
    pub(super) own: Option<Pair>,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn wrong(key: &'static str, why: impl std::fmt::Display) -> DoorsError {
    DoorsError::Tls { key, why: why.to_string() }
}

/// What the clients' listener offers; `None` without certificates, when it speaks in the clear.
pub(super) fn server(texts: &ServerTexts) -> Result<Option<Arc<ServerConfig>>, DoorsError> {
    if texts.pairs.is_empty() {
        return Ok(None);
    }
    if texts.pairs.len() > MAX_CERTIFICATES {
        return Err(wrong("certificates", format!("more than {MAX_CERTIFICATES}")));
    }
    let keys = texts.pairs.iter().map(|pair| certified("certificates", pair)).collect::<Result<Vec<_>, _>>()?;
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| wrong("certificates", error))?;
    let builder = match &texts.client_authorities {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let key = "listen.client_ca_file";
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(key, pem)?), provider());
            let verifier = if texts.client_certificate_required { verifier } else { verifier.allow_unauthenticated() };
            builder.with_client_cert_verifier(verifier.build().map_err(|error| wrong(key, error))?)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(Certificates(keys)));
    let offered = if texts.http2 { &PROTOCOLS[..] } else { &PROTOCOLS[1..] };
    config.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
    // Made anew with every reload, so that no session outlives the authorities that let it in.
    config.ticketer = ring::Ticketer::new().map_err(|error| wrong("certificates", error))?;
    Ok(Some(Arc::new(config)))
}

/// How engines are trusted, and what they are shown.
pub(super) fn client(texts: &ClientTexts) -> Result<Option<Arc<ClientConfig>>, DoorsError> {
    let Some(authorities) = &texts.authorities else { return Ok(None) };
    let roots = roots("upstream.ca_file", authorities)?;
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| wrong("upstream.ca_file", error))?;
    let builder = builder.with_root_certificates(roots);
    let mut config = match &texts.own {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let key = "upstream.certificate_file";
            let (chain, private) = read_pair(key, pair)?;
            builder.with_client_auth_cert(chain, private).map_err(|error| wrong(key, error))?
        }
    };
    config.alpn_protocols = vec![PROTOCOLS[1].to_vec()];
    Ok(Some(Arc::new(config)))
}

fn roots(key: &'static str, pem: &str) -> Result<RootCertStore, DoorsError> {
    let mut roots = RootCertStore::empty();
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(|e| wrong(key, e))?;
    let (added, _) = roots.add_parsable_certificates(found);
    if added == 0 {
        return Err(wrong(key, "it holds no certificate of an authority"));
    }
    Ok(roots)
}

fn read_pair(
    key: &'static str,
    pair: &Pair,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), DoorsError> {
    let chain = CertificateDer::pem_slice_iter(pair.chain.as_bytes()).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| wrong(key, error))?;
    if chain.is_empty() {
        return Err(wrong(key, "the chain's file holds no certificate"));
    }
    let private = PrivateKeyDer::from_pem_slice(pair.key.as_bytes());
    Ok((chain, private.map_err(|_| wrong(key, "the key's file holds no private key in PEM"))?))
}

fn certified(key: &'static str, pair: &Pair) -> Result<Arc<CertifiedKey>, DoorsError> {
    let (chain, private) = read_pair(key, pair)?;
    let certified = CertifiedKey::from_der(chain, private, &provider());
    Ok(Arc::new(certified.map_err(|error| wrong(key, format!("chain and key do not fit: {error}")))?))
}

/// The certificate that a client's server name asks for; the first one for other names and for clients without any.
#[derive(Debug)]
struct Certificates(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().and_then(|name| ServerName::try_from(name.to_owned()).ok());
        let named = name.and_then(|name| self.0.iter().find(|key| is_for(key, &name)));
        named.or_else(|| self.0.first()).cloned()
    }
}

fn is_for(key: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let parsed = key.end_entity_cert().ok().and_then(|certificate| ParsedCertificate::try_from(certificate).ok());
    parsed.is_some_and(|certificate| verify_server_name(&certificate, name).is_ok())
}
