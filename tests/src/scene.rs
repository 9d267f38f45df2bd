//! The smallest whole system for one test: mock engines, a gateway, a folder that goes away with them.

use crate::cluster::{Engine, EngineOptions, Gateway, GatewayOptions};
use crate::process::Failure;
use tempfile::TempDir;

/// Engines and a gateway. Dropping it ends them.
pub struct Scene {
    /// The gateway.
    pub gateway: Gateway,
    /// The engines, in the order in which they were started.
    pub engines: Vec<Engine>,
    /// Where logs and configuration are.
    pub folder: TempDir,
}

impl Scene {
    /// `count` equal engines behind a gateway.
    pub async fn start(count: usize, engine: EngineOptions, gateway: GatewayOptions) -> Result<Self, Failure> {
        let folder = folder()?;
        let mut engines = Vec::with_capacity(count);
        for number in 0..count {
            engines.push(Engine::start(&format!("engine-{number}"), &engine, folder.path()).await?);
        }
        let urls: Vec<String> = engines.iter().map(Engine::url).collect();
        let gateway = Gateway::start(&gateway, &urls, folder.path()).await?;
        Ok(Self { gateway, engines, folder })
    }

    /// One engine and a gateway without tokenizer files: starts at once, for tests to which tokens do not matter.
    pub async fn plain() -> Result<Self, Failure> {
        let engine = EngineOptions { tokenizer: false, ..EngineOptions::default() };
        let gateway = GatewayOptions { tokenizer: false, ..GatewayOptions::default() };
        Self::start(1, engine, gateway).await
    }
}

/// A fresh temporary folder.
pub fn folder() -> Result<TempDir, Failure> {
    tempfile::Builder::new().prefix("forebay-test-").tempdir().map_err(|e| Failure(format!("no temporary folder: {e}")))
}
