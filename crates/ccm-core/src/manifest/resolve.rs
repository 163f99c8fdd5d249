//! Expressions in a resource's properties. Each is resolved exactly once: a result that looks like an
//! expression is data.

use std::sync::Arc;

use crate::model::registration::Port;
use crate::model::resource::{Phase, Properties, Resource, TemplateField};
use crate::model::value::{Map, Value};
use ccm_template::expand::{self, Nulls, has_expressions};
use ccm_template::expr::{Cache, ExprError};
use ccm_template::{Env, UnknownValue};

/// Failed expression of a property.
#[derive(Clone, Debug, thiserror::Error)]
#[error("resolving field {field}: {cause}")]
pub struct ResolveError {
    pub field: String,
    #[source]
    pub cause: ExprError,
}

impl ResolveError {
    /// Returns the property of the field; fields are named as upstream names them.
    pub(crate) fn property(&self) -> &str {
        self.field.split(['[', '.']).next().unwrap_or_default()
    }
}

/// Resolves the properties of one phase in place.
pub(crate) fn resolve_properties(
    resource: &mut Resource,
    phase: Phase,
    env: &Env,
    programs: &Cache,
) -> Result<(), ResolveError> {
    match resolve_known(resource, phase, env, programs)?.pop() {
        Some(unknown) => Err(unknown),
        None => Ok(()),
    }
}

/// Resolves the properties of one phase in place. Fields that need values that are not known are left
/// as they are and returned. A resource that depends on a secret becomes sensitive; what it renders when
/// it is applied is checked then, see [`crate::resource::renders_secret`].
pub(super) fn resolve_known(
    resource: &mut Resource,
    phase: Phase,
    env: &Env,
    programs: &Cache,
) -> Result<Vec<ResolveError>, ResolveError> {
    let Some(redacted_env) = env.redacted() else {
        return resolve_fields(resource, phase, env, programs);
    };
    let mut redacted = resource.clone();
    let opened = env.secrets.count();
    let unknown = resolve_fields(resource, phase, env, programs)?;
    if !env.has_secrets() && env.secrets.count() == opened {
        return Ok(unknown);
    }
    let is_secret = match resolve_fields(&mut redacted, phase, &redacted_env, programs) {
        Ok(_) => redacted != *resource,
        Err(_) => true,
    };
    if is_secret {
        make_sensitive(resource, redacted)?;
    }
    Ok(unknown)
}

/// Makes a resource that depends on a secret sensitive; `redacted` is the same without the secret. What
/// events show of a sensitive resource must not depend on it.
fn make_sensitive(resource: &mut Resource, mut redacted: Resource) -> Result<(), ResolveError> {
    resource.common.sensitive = true;
    redacted.common.sensitive = true;
    let shown = |resource: &Resource| Arc::new(resource.clone()).redacted();
    let (shown_with, shown_without) = (shown(resource), shown(&redacted));
    if shown_with != shown_without {
        let is_name = shown_with.common.name != shown_without.common.name;
        return Err(ResolveError {
            field: if is_name { "Name" } else { "Properties" }.into(),
            cause: ExprError::ShowsSecret,
        });
    }
    if let (Properties::Apply(apply), Properties::Apply(redacted)) =
        (&mut resource.properties, redacted.properties)
    {
        apply.redacted_data = redacted.data;
    }
    Ok(())
}

fn resolve_fields(
    resource: &mut Resource,
    phase: Phase,
    env: &Env,
    programs: &Cache,
) -> Result<Vec<ResolveError>, ResolveError> {
    let is_hidden = resource.common.sensitive;
    let mut unknown = Vec::new();
    resource.visit_fields(phase, &mut |name, suffix, field| {
        let Err(cause) = resolve_field(field, env, programs) else {
            return Ok(());
        };
        let is_unknown = UnknownValue::in_chain(&cause).is_some();
        let error = ResolveError {
            field: format!("{name}{suffix}"),
            cause: match cause {
                cause if is_unknown => cause,
                cause if !is_hidden && !env.secrets.is_in(&cause.to_string()) => cause,
                _ => ExprError::Hidden,
            },
        };
        if is_unknown {
            unknown.push(error);
            return Ok(());
        }
        Err(error)
    })?;
    Ok(unknown)
}

/// Reports whether a property that is resolved early may have expressions.
pub(super) fn has_early_expressions(resource: &mut Resource) -> bool {
    let visited = resource.visit_fields(Phase::Early, &mut |_, _, field| match field {
        TemplateField::Text(text) if !has_expressions(text) => Ok(()),
        TemplateField::Text(_) | TemplateField::Data { .. } | TemplateField::Port(_) => Err(()),
    });
    visited.is_err()
}

/// Reports whether the resource has deferred expressions.
pub(crate) fn is_deferred(resource: &Resource) -> bool {
    resource.deferred_texts().any(has_expressions)
}

fn resolve_field(field: TemplateField<'_>, env: &Env, programs: &Cache) -> Result<(), ExprError> {
    match field {
        TemplateField::Text(text) => {
            if has_expressions(text) {
                *text = expand::resolve_string(text, env, programs)?.into_owned();
            }
        }
        TemplateField::Data { value, keys } => {
            let expanded = expand::expand_value(value, Nulls::Drop, env, programs)?;
            *value = if keys {
                expand_keys(&expanded, env, programs)?
            } else {
                expanded
            };
        }
        TemplateField::Port(port) => {
            if let Port::Template(text) = port {
                *port = match expand::resolve_typed(text, env, programs)? {
                    Value::Null => Port::Unset,
                    Value::Int(number) => Port::Number(number),
                    other => Port::from_text(&other.to_string()),
                };
            }
        }
    }
    Ok(())
}

fn expand_keys(value: &Value, env: &Env, programs: &Cache) -> Result<Value, ExprError> {
    let Some(map) = value.as_map() else {
        return Ok(value.clone());
    };
    let mut expanded = Map::new();
    for (key, value) in map {
        let key = expand::resolve_string(key, env, programs)?;
        expanded.insert(key.into(), value.clone());
    }
    Ok(expanded.into())
}
