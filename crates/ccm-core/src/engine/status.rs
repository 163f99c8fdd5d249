//! Looking without touching: the state of one resource, for whoever only wants to know.

use super::{Machine, Scope};
use crate::model::TypeName;
use crate::model::document::DocumentError;
use crate::model::request::StatusRequest;
use crate::model::resource::decode::{self, Declared};
use crate::model::resource::{
    Archive, File, Invalid, Package, Properties, Resource, Scaffold, Service, module_path,
};
use crate::model::state::State;
use crate::resource::{
    self, Host, ProviderError, ResourceError, Selected, package, scaffold, service,
};

/// Why a state can't be told.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error("{0} resources do not support retrieving status")]
    Unsupported(TypeName),
    #[error("{0} name must be an absolute path, got {1:?}")]
    RelativePath(TypeName, String),
    #[error("{0}")]
    Properties(DocumentError),
    #[error("no resources found")]
    NoResources,
    #[error("status starts no program: a package module can't be named by its path")]
    Module,
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Provider(#[from] ProviderError),
    #[error(transparent)]
    Resource(#[from] ResourceError),
}

/// Returns a resource that asks for nothing, to be looked at.
pub fn to_look_at(type_name: TypeName, name: &str) -> Result<Resource, LookError> {
    let (properties, is_path) = match type_name {
        TypeName::File => (Properties::File(File::default()), true),
        TypeName::Scaffold => (Properties::Scaffold(Scaffold::default()), true),
        TypeName::Archive => (Properties::Archive(Archive::default()), true),
        TypeName::Package => (Properties::Package(Package::default()), false),
        TypeName::Service => (Properties::Service(Service::default()), false),
        TypeName::Apply | TypeName::Exec => return Err(LookError::Unsupported(type_name)),
    };
    if is_path && !name.starts_with('/') {
        return Err(LookError::RelativePath(type_name, name.into()));
    }
    let ensure = match type_name {
        TypeName::Service => "running",
        _ => "present",
    };
    let mut resource = Resource::new(name, ensure, properties);
    if !is_path {
        // The name goes to a command; nothing else would check it here.
        resource.complete()?;
    }
    Ok(resource)
}

/// Returns the resource that a request from outside asks about, however its properties are
/// written. Whoever looks starts no program of his choice.
pub fn asked_about(request: &StatusRequest) -> Result<Resource, LookError> {
    let mut resource = to_look_at(request.type_name, &request.name)?;
    let Some(properties) = &request.properties else {
        return Ok(resource);
    };
    let declared = decode::resources(request.type_name, properties);
    let mut declared = declared.map_err(LookError::Properties)?;
    let Declared { resource: told, .. } = declared.pop().ok_or(LookError::NoResources)?;
    if module_path(&told.common.provider).is_some() {
        return Err(LookError::Module);
    }
    resource.common.provider = told.common.provider;
    resource.common.sensitive = told.common.sensitive;
    resource.properties = told.properties;
    Ok(resource)
}

/// Returns the state of a resource as it is now.
pub fn look(
    resource: &Resource,
    scope: &Scope,
    machine: &Machine<'_>,
    packages: &package::Shared,
) -> Result<State, LookError> {
    let host = Host {
        runner: machine.runner,
        clock: machine.clock,
        accounts: &machine.accounts,
        working_dir: scope.working_dir(),
        env: &scope.env,
        packages,
        services: &service::Memory::default(),
        scaffolds: &scaffold::Sources::default(),
    };
    let mut state = match resource::select_provider(resource, host)? {
        Selected::Manifest(_) => return Err(LookError::Unsupported(TypeName::Apply)),
        Selected::Managed(managed) => managed.inspect(host)?,
    };
    if resource.common.sensitive {
        state.hide_content();
    }
    Ok(state)
}
