//! Status of one resource: reads its state and changes nothing.

use super::{Machine, Scope};
use crate::model::TypeName;
use crate::model::document::DocumentError;
use crate::model::request::StatusRequest;
use crate::model::resource::decode::{self, DeclaredResource};
use crate::model::resource::{
    Archive, File, Group, InvalidProperty, Line, Link, Package, Properties, Resource, Scaffold,
    Service, User, module_path,
};
use crate::model::state::State;
use crate::resource::{
    self, Host, ProviderError, ResourceError, SelectedProvider, package, scaffold, service,
};
use crate::system::files::Writer;

/// A status request that failed.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    #[error("{0} resources do not support retrieving status")]
    Unsupported(TypeName),
    #[error("{0} name must be an absolute path, got {1:?}")]
    RelativePath(TypeName, String),
    #[error("{0}")]
    Properties(DocumentError),
    #[error("no resources found")]
    NoResources,
    #[error("status runs no programs: a package module can't be given by its path")]
    Module,
    #[error(transparent)]
    Invalid(#[from] InvalidProperty),
    #[error(transparent)]
    Provider(#[from] ProviderError),
    #[error(transparent)]
    Resource(#[from] ResourceError),
}

/// Returns a resource without properties, for [`inspect`].
pub fn resource_to_inspect(type_name: TypeName, name: &str) -> Result<Resource, StatusError> {
    let resource = without_properties(type_name, name)?;
    check_path(&resource)?;
    Ok(resource)
}

/// Rejects a relative path of a type that is named by its path.
fn check_path(resource: &Resource) -> Result<(), StatusError> {
    let path = resource.policy_name();
    match resource.type_name() {
        TypeName::Apply
        | TypeName::Exec
        | TypeName::Group
        | TypeName::Package
        | TypeName::Service
        | TypeName::User => Ok(()),
        _ if path.starts_with('/') => Ok(()),
        type_name => Err(StatusError::RelativePath(type_name, path.into())),
    }
}

fn without_properties(type_name: TypeName, name: &str) -> Result<Resource, StatusError> {
    let (properties, is_path) = match type_name {
        TypeName::File => (Properties::File(File::default()), true),
        TypeName::Group => (Properties::Group(Group::default()), false),
        TypeName::User => (Properties::User(User::default()), false),
        TypeName::Line => (Properties::Line(Line::default()), true),
        TypeName::Link => (Properties::Link(Link::default()), true),
        TypeName::Scaffold => (Properties::Scaffold(Scaffold::default()), true),
        TypeName::Archive => (Properties::Archive(Archive::default()), true),
        TypeName::Package => (Properties::Package(Package::default()), false),
        TypeName::Service => (Properties::Service(Service::default()), false),
        TypeName::Apply | TypeName::Exec => return Err(StatusError::Unsupported(type_name)),
    };
    let ensure = match type_name {
        TypeName::Service => "running",
        _ => "present",
    };
    let mut resource = Resource::new(name, ensure, properties);
    if !is_path {
        // The name becomes a command argument, so it is validated here.
        resource.complete()?;
    }
    Ok(resource)
}

/// Returns the resource of a remote status request. Package modules given by path are rejected, so
/// that a status request can't run an arbitrary program.
pub fn resource_from_request(request: &StatusRequest) -> Result<Resource, StatusError> {
    let Some(properties) = &request.properties else {
        return resource_to_inspect(request.type_name, &request.name);
    };
    let mut resource = without_properties(request.type_name, &request.name)?;
    let declared = decode::read_resources(request.type_name, properties);
    let mut declared = declared.map_err(StatusError::Properties)?;
    let DeclaredResource {
        resource: declared, ..
    } = declared.pop().ok_or(StatusError::NoResources)?;
    if module_path(&declared.common.provider).is_some() {
        return Err(StatusError::Module);
    }
    resource.common.provider = declared.common.provider;
    resource.common.sensitive = declared.common.sensitive;
    resource.properties = declared.properties;
    check_path(&resource)?;
    Ok(resource)
}

/// Returns the current state of a resource.
pub fn inspect(
    resource: &Resource,
    scope: &Scope,
    machine: &Machine<'_>,
    packages: &package::PackageCache,
) -> Result<State, StatusError> {
    let host = Host {
        runner: machine.runner,
        clock: machine.clock,
        accounts: &machine.accounts,
        working_dir: scope.working_dir(),
        state_dir: None,
        files: Writer::default(),
        env: &scope.env,
        packages,
        services: &service::ServiceCache::default(),
        scaffolds: &scaffold::SourceCache::default(),
    };
    let mut state = match resource::select_provider(resource, host)? {
        SelectedProvider::Manifest(_) => return Err(StatusError::Unsupported(TypeName::Apply)),
        SelectedProvider::Managed(managed) => managed.inspect(host)?,
    };
    if resource.common.sensitive {
        state.redact_checksums();
    }
    Ok(state)
}
