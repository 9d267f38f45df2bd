//! What a model's name stands for: the model itself, its policy, whether engines get its prompts as ids.

use super::Gateway;
use crate::config::Config;
use crate::error::Fault;
use crate::parse::Parsed;
use forebay_routing::Policy;
use hashbrown::HashMap;
use tokio::time::Duration;

/// Engines introduce themselves within seconds of the gateway's start.
const NO_MODEL_PAUSE: Duration = Duration::from_secs(2);

/// What the configuration says of models; replaced when it changes.
pub(super) struct Models {
    default: Policy,
    own: HashMap<String, Own>,
    /// Alias → model.
    aliases: HashMap<String, String>,
}

#[derive(Clone, Copy)]
struct Own {
    policy: Option<Policy>,
    forwards_ids: bool,
}

impl Models {
    pub(super) fn of(config: &Config) -> Self {
        let own = |model: &crate::config::resolved::Model| {
            let own = Own { policy: model.policy, forwards_ids: model.forward_token_ids };
            (model.name.clone(), own)
        };
        let aliases = config.models.iter().flat_map(|model| {
            let name = &model.name;
            model.aliases.iter().map(move |alias| (alias.clone(), name.clone()))
        });
        Self {
            default: config.routing.policy,
            own: config.models.iter().map(own).collect(),
            aliases: aliases.collect(),
        }
    }
}

impl Gateway {
    /// The policy of `model`.
    pub fn policy(&self, model: &str) -> Policy {
        let models = self.models.load();
        if models.own.is_empty() {
            return models.default;
        }
        models.own.get(model).and_then(|own| own.policy).unwrap_or(models.default)
    }

    /// Whether engines may get `model`'s prompts as ids.
    pub(super) fn forwards_ids(&self, model: &str) -> bool {
        let models = self.models.load();
        !models.own.is_empty() && models.own.get(model).is_some_and(|own| own.forwards_ids)
    }

    /// Configured aliases with their models, by name.
    pub(crate) fn aliases(&self) -> Vec<(String, String)> {
        let models = self.models.load();
        let mut all: Vec<_> = models.aliases.iter().map(|(alias, model)| (alias.clone(), model.clone())).collect();
        all.sort();
        all
    }

    /// Finds the model that a request means: the one that it names, the one behind an alias, the only one where it names
    /// none.
    ///
    /// # Errors
    /// 400 where there are several and the request names none.
    pub fn complete(&self, parsed: &mut Parsed) -> Result<(), Fault> {
        if !parsed.model.is_empty() {
            let models = self.models.load();
            // Names of engines go first: an alias takes nothing away.
            if !models.aliases.is_empty()
                && let Some(model) = models.aliases.get(&parsed.model)
                && self.fleet.view().model(&parsed.model).is_none()
            {
                parsed.rename(model);
            }
            return Ok(());
        }
        let view = self.fleet.view();
        let mut models = view.models.iter().filter(|model| model.base.is_none());
        match (models.next(), models.next()) {
            (Some(only), None) => parsed.model.clone_from(&only.name),
            (None, _) => return Err(Fault { retry_after: Some(NO_MODEL_PAUSE), ..no_model_yet() }),
            (Some(_), Some(_)) => {
                let message = "`model` is required where several are served; GET /v1/models lists them";
                return Err(Fault::client(400, "missing_field", message).with_param("model"));
            }
        }
        Ok(())
    }
}

fn no_model_yet() -> Fault {
    Fault::gateway(503, "no_workers", "no engine has told which model it serves yet")
}
